#!/bin/sh
# The first process of a guest of the lab's hypervisor: it puts the hypervisor's root under one of its own.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for word in $(while read -r line; do echo "$line"; done </proc/cmdline); do
    case $word in lab.*=*) eval "${word#lab.}" ;; esac
done
while read -r module; do insmod "$module" || echo "insmod $module failed"; done </modules
mkdir -p /machine /own /newroot
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,access=any root /machine || exec sh
mount -t tmpfs own /own
mkdir /own/upper /own/work
mount -t overlay -o lowerdir=/machine,upperdir=/own/upper,workdir=/own/work root /newroot || exec sh
mount -t proc proc /newroot/proc
mount -t sysfs sys /newroot/sys
mount -t devtmpfs dev /newroot/dev
mkdir -p /newroot/dev/pts /newroot/dev/shm
mount -t devpts devpts /newroot/dev/pts
mount -t tmpfs shm /newroot/dev/shm
mount -t tmpfs run /newroot/run
mkdir -p "/newroot$scratch/$name"
mount -t tmpfs tmp "/newroot$scratch/$name"
hostname "$name"
export PYTHONPATH=/opt/nearmetal PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
serve="/usr/bin/python3 -S -m nearmetal.hosts.lab.remote"
if [ "$address" ]; then
    exec switch_root /newroot /bin/sh -c "$(cat /network)
exec $serve 0.0.0.0" network "$address" "$mac"
fi
: >/newroot/run/hosts
mount --bind /newroot/run/hosts /newroot/etc/hosts
exec switch_root /newroot $serve
