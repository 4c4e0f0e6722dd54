#!/usr/bin/env bash
# Installs what tests talk to beside Python's packages: an ssh server, adb and a C compiler. Only
# where that can be done, by root and apt-get; elsewhere the tests that need them are left out.
wanted=()
command -v adb >/dev/null || wanted+=(adb)
PATH="$PATH:/usr/sbin:/sbin" command -v sshd >/dev/null || wanted+=(openssh-server)
command -v ssh >/dev/null || wanted+=(openssh-client)
command -v cc >/dev/null || wanted+=(gcc libc6-dev)
if [ ${#wanted[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    {
        apt-get update --quiet
        for package in "${wanted[@]}"; do
            apt-get install --quiet --yes --no-install-recommends "$package"
        done
    } >/dev/null 2>&1
fi
exit 0
