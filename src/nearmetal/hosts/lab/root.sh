#!/bin/sh
set -eu
root=$1
chroot "$root" env PYTHONPATH=/tmp/build/src PYTHONDONTWRITEBYTECODE=1 XDG_CACHE_HOME=/tmp/build/cache \
    python3 -m nearmetal.run.prebuild /PREBUILT
find "$root/usr/lib" -name __pycache__ -path '*python3*' -prune -exec rm -rf {} +
chroot "$root" python3 -m compileall -q -f --invalidation-mode unchecked-hash \
    -x 'test|idlelib|lib2to3|dist-packages' /usr/lib/python3.[0-9]* || true
chroot "$root" dpkg-query -W -f '${Package} ${Version}\n' | LC_ALL=C sort >"$root/etc/nearmetal-packages"
rm -rf "$root/tmp/build" "$root"/boot/initrd* "$root"/usr/lib/modules/*/kernel/drivers/gpu
find "$root/usr/lib" "$root/usr/include" -name '*.a' -delete
