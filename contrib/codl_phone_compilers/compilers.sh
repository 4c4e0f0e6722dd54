#!/bin/sh
# The compilers of phones' GPUs in a folder of Debian's packages; `codl kernels --setup` calls this.
#
#   compilers.sh make FOLDER        Adreno's (freedreno): some 95 MB of packages, 460 MB unpacked
#   compilers.sh make-mali FOLDER   Mali's (panfrost): Mesa built once from Debian's source, 16 MB kept
#   compilers.sh reach FOLDER       prints the mirror of packages; fails where it cannot be reached
#   compilers.sh run FOLDER WORK FAMILY NUMBER JOBS SECONDS
#                                   building.py in WORK, beside the driver of a GPU's number
#
# It needs mmdebstrap and Linux's namespaces; as root or not. Nothing is installed on the machine.
# DEBIAN_MIRROR is where packages come from, if not from where this machine's do: snapshot.debian.org
# has those of any day, which is how versions are pinned.
set -eu
what=$1 folder=$2 root=$2/root
mirror() {
    [ -z "${DEBIAN_MIRROR:-}" ] || { echo "$DEBIAN_MIRROR"; return; }
    mine=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' |
        grep -v security | head -n 1)
    echo "${mine:-http://deb.debian.org/debian}"
}

reach() {
    url=$(mirror)
    echo "$url"
    /usr/lib/apt/apt-helper -qq -o Acquire::Retries=0 \
        download-file "${url%/}/dists/trixie/InRelease" "$folder/InRelease"
    rm "$folder/InRelease"
}

adreno() {
    [ ! -e "$root/etc/OpenCL/vendors/rusticl.icd" ] || return 0
    rm -rf "$root.part"
    mkdir -p "$root.part/files" "$root.part/mali"
    # For amd64, trixie's Mesa has no freedreno; that of its backports has. No package's script runs.
    # By tar, the files are the user's, root or not.
    printf 'deb %s trixie main\ndeb %s trixie-backports main\n' "$(mirror)" "$(mirror)" |
        mmdebstrap --quiet --variant=extract --architectures=amd64 \
            --aptopt='APT::Default-Release "trixie-backports"' \
            --include=base-files,dash,coreutils,python3,mesa-opencl-icd,mesa-drm-shim,ocl-icd-libopencl1 \
            trixie - - | tar -x -C "$root.part" --no-same-owner --exclude='./dev/*'
    [ -e "$root.part/etc/OpenCL/vendors/rusticl.icd" ]
    rm -rf "$root"
    mv "$root.part" "$root"
}

mali() {
    adreno
    [ ! -e "$root/mali/rusticl.icd" ] || return 0
    tools=gcc,g++,libc6-dev,meson,ninja-build,pkgconf,flex,bison,rustc,rustfmt,bindgen,cbindgen
    python=python3-mako,python3-yaml,python3-packaging,python3-ply,python3-pycparser
    llvm=llvm-19-dev,libclang-19-dev,libclang-cpp19-dev,libclc-19-dev,libclc-19,libllvmspirvlib-19-dev
    others=llvm-spirv-19,spirv-tools,glslang-tools,libdrm-dev,xz-utils,libelf-dev,zlib1g-dev,libzstd-dev
    cat > "$folder/build.sh" <<'BUILD'
set -eu
export PATH=/usr/lib/llvm-19/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 HOME=/root
cd /root
apt-get source --download-only mesa
tar xf mesa_*.orig.tar.xz
cd mesa-*/
off= ; for part in glx egl gbm gles1 gles2 gallium-va gallium-vdpau gallium-xa valgrind libunwind; do
    off="$off -D$part=disabled"
done
meson setup build --wrap-mode=nofallback $off -Dbuildtype=release -Doptimization=1 -Db_ndebug=true \
    -Drust_std=2021 -Dgallium-drivers=panfrost -Dvulkan-drivers= -Dgallium-rusticl=true \
    -Dllvm=enabled -Dtools=drm-shim -Dplatforms= -Dopengl=false
driver=src/gallium/targets/rusticl/libRusticlOpenCL.so.1.0.0
shim=src/panfrost/drm-shim/libpanfrost_noop_drm_shim.so
ninja -C build $driver $shim
strip -o /root/libRusticlOpenCL.so build/$driver
cp build/$shim /root/
ls /root/mesa_*.dsc | sed 's/.*mesa_\(.*\)\.dsc/\1/' > /root/version
BUILD
    printf 'deb %s trixie main\ndeb-src %s trixie main\n' "$(mirror)" "$(mirror)" |
        mmdebstrap --quiet --variant=apt --architectures=amd64 --format=null \
            --aptopt='APT::Install-Recommends "false"' \
            --include=$tools,$python,$llvm,$others,libexpat1-dev \
            --customize-hook="copy-in $folder/build.sh /root" \
            --customize-hook='chroot "$1" sh /root/build.sh' \
            --customize-hook="copy-out /root/libRusticlOpenCL.so /root/libpanfrost_noop_drm_shim.so /root/version $root/mali" \
            trixie - -
    echo /mali/libRusticlOpenCL.so > "$root/mali/rusticl.icd"
}

run() {
    work=$3 family=$4 number=$5 jobs=$6 seconds=$7
    case $family in
    adreno) set -- FD_GPU_ID="$number" RUSTICL_ENABLE=freedreno FD_MESA_DEBUG=serialc IR3_SHADER_DEBUG=cs \
        OCL_ICD_VENDORS=/etc/OpenCL/vendors LD_PRELOAD=libfreedreno_noop_drm_shim.so ;;
    mali) set -- PAN_GPU_ID="$number" RUSTICL_ENABLE=panfrost BIFROST_MESA_DEBUG=shaders,shaderdb \
        RUSTICL_FEATURES=fp16 OCL_ICD_VENDORS=/mali LD_PRELOAD=/mali/libpanfrost_noop_drm_shim.so ;;
    esac
    exec env root="$root" work="$work" unshare --user --map-root-user --mount --pid --fork --kill-child \
        sh -euc '
            mount -t proc proc "$root/proc"
            mount --rbind /dev "$root/dev"
            mount --bind "$work" "$root/files"
            exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/bin:/bin LANG=C.UTF-8 \
                MESA_SHADER_CACHE_DISABLE=true "$@"' sh "$@" \
        python3 -W ignore /files/building.py "$family" "$jobs" "$seconds"
}

case $what in
make) adreno ;;
make-mali) mali ;;
reach) reach ;;
run) run "$@" ;;
esac
