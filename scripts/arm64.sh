#!/bin/sh
# A Debian for arm64 under qemu, as a device whose OpenCL is PoCL: what is right on Arm, never a latency.
#
#   scripts/arm64.sh make               download it, about 650 MB in one folder
#   scripts/arm64.sh run COMMAND ...    run a command there; this checkout is /codl
#   scripts/arm64.sh ssh ... TEXT       be ssh for `--serial ssh://arm64`, as CODL_SSH_COMMAND
#   scripts/arm64.sh check [BUDGET]     all that docs/tutorial/board.md tells of; a budget as in 30m is for kernels
#   scripts/arm64.sh bare               an agent with NumPy and ncnn alone: no msgspec, no pyopencl
#   scripts/arm64.sh stock              the same where there is no Python: codl brings a build of it
#
# The folder is CODL_ARM64, or /tmp/codl-arm64. Needs mmdebstrap and qemu-user-static, and Linux 6.7 or
# later: its own namespaces alone know how programs for arm64 run, and this machine is not changed.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
folder=${CODL_ARM64:-/tmp/codl-arm64}
root=$folder/${CODL_ARM64_ROOT:-root}
packages=base-files,dash,coreutils,tar,ocl-icd-libopencl1,pocl-opencl-icd
# The head of a program for arm64, and which of its bits count.
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
# Its core, which libraries look up there: those of this machine are of another kind.
export QEMU_CPU=cortex-a72

core() {
    printf 'processor\t: %s\nFeatures\t: fp asimd aes pmull sha1 sha2 crc32 cpuid\n' "$1"
    printf 'CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\n'
    printf 'CPU part\t: 0xd08\nCPU revision\t: 3\n\n'
}

make() {
    [ -d "$root" ] && return
    mkdir -p "$folder"
    rm -rf "$root.part"
    # No script of a package runs: unpacked they do.
    mmdebstrap --quiet --architectures=arm64 --variant=extract --include="$packages,${1:-python3}" \
        bookworm "$root.part"
    mkdir -p "$root.part/codl"
    for index in $(seq 0 $(($(nproc --all) - 1))); do core "$index"; done > "$folder/cpuinfo"
    mv "$root.part" "$root"
}

run() {
    [ -d "$root" ] || { echo "There is no $root: scripts/arm64.sh make" >&2; exit 1; }
    qemu=$(command -v qemu-aarch64-static) || { echo "Install qemu-user-static." >&2; exit 1; }
    exec env root="$root" cpuinfo="$folder/cpuinfo" here="$here" \
        entry=":codl-arm64:M::$magic:$mask:$qemu:FOC" \
        unshare --user --map-root-user --mount --pid --fork --kill-child sh -euc '
            mount -t proc proc "$root/proc"
            mount --bind "$cpuinfo" "$root/proc/cpuinfo"
            mount --rbind /sys "$root/sys"
            mount --rbind /dev "$root/dev"
            mount --bind "$here" "$root/codl"
            mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
            printf "%s" "$entry" > /proc/sys/fs/binfmt_misc/register
            set +e
            chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/bin:/bin LANG=C.UTF-8 \
                QEMU_CPU="$QEMU_CPU" sh -c "cd && exec \"\$@\"" sh "$@"
            exit $?' sh "$@"
}

check() {
    make
    export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" CODL_SSH_COMMAND="$here/scripts/arm64.sh ssh"
    cd "$folder"
    codl() { python -c 'from codl.cli import main; main()' "$@"; }
    codl agent install --serial ssh://arm64
    python "$here/scripts/check_target.py" --serial ssh://arm64
    codl doctor --serial ssh://arm64 --budget "${1:-30m}"
}

bare() {
    make "$@"
    rm -rf "$root/root/.codl"
    export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" CODL_SSH_COMMAND="$here/scripts/arm64.sh ssh"
    python -m pip download --quiet --no-deps --only-binary :all: --dest "$folder/wheels" \
        --implementation cp --python-version 3.11 --platform manylinux_2_28_aarch64 \
        --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 numpy ncnn
    cd "$folder"
    codl() { python -c 'from codl.cli import main; main()' "$@"; }
    PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels codl agent install --serial ssh://arm64 ${build:+--python "$build"}
    python "$here/scripts/check_target.py" --serial ssh://arm64
}

# Debian's library of Python and its modules, laid out as python.org's build for Android is.
stock() {
    export CODL_ARM64_ROOT=stock
    root=$folder/stock build=$folder/python-aarch64-linux-gnu.tar.gz
    if [ ! -f "$build" ]; then
        rm -rf "$root" "$folder/build"
        make libpython3.11
        mkdir -p "$folder/build/prefix/lib"
        mv "$root"/usr/lib/python3* "$root"/usr/lib/*/libpython3*.so.1.0 "$folder/build/prefix/lib"
        tar -C "$folder/build" -czf "$build.part" prefix
        mv "$build.part" "$build"
    fi
    bare libpython3.11
    mkdir -p "$folder/socs"
    codl soc detect --serial ssh://arm64 --name stock -o "$folder/socs/stock.yaml"
    # Ops that are small: under qemu a large convolution takes seconds each time.
    codl collect --soc "$folder/socs/stock.yaml" --serial ssh://arm64 --samples 50 --datasets "$folder/rows" \
        --ops "conv2d in=1x32x28x28 oc=32 kernel=3x3 pad=1" --ops "conv2d in=1x64x14x14 oc=64 kernel=1x1" \
        --ops "pooling in=1x32x28x28 kernel=2x2 stride=2x2" --ops "eltwise in=1x64x14x14,1x64x14x14"
}

command=${1:-help}
[ $# = 0 ] || shift
case $command in
check) check "$@" ;;
bare) bare ;;
stock) stock ;;
make) make ;;
run) run "$@" ;;
ssh)
    for text; do :; done
    [ "$text" != -V ] || exec qemu-aarch64-static --version
    run sh -c "$text"
    ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
