# $1: the other machine, as this one knows it; $2: the interface to look at, empty for the one that leads there;
# $3: directory of the MPI's programs or empty; $4...: tools. The function `lower` stands before this.
say() { printf '%s=%s\n' "$1" "$2"; }
first() { head -n 1 "$1" 2> /dev/null; }
other=$1 named=$2 mpi=${3:+$3/bin/}; shift 3
say host "$(uname -n)"
say identity "$(first /etc/machine-id) $(first /proc/sys/kernel/random/boot_id) $(readlink /proc/self/ns/net)"
say system "$(. /etc/os-release 2> /dev/null; printf %s "$PRETTY_NAME")"
say kernel "$(uname -r)"
say cpu "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)"
say cpus "$(getconf _NPROCESSORS_ONLN)"
say load "$(cut -d ' ' -f 1 /proc/loadavg)"
grep -q '^flags.*[[:space:]]hypervisor' /proc/cpuinfo && say virtual "$(first /sys/class/dmi/id/sys_vendor)"
say governor "$(first /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor)"
address=$(getent ahostsv4 "$other" | sed -n '1s/[[:space:]].*//p')
[ "$address" ] || address=$(getent ahostsv6 "$other" | sed -n '1s/[[:space:]].*//p')
say address "$address"
if [ "$address" ]; then
    route=$(ip -o route get "$address" 2> /dev/null)
    interface=$(printf %s "$route" | sed -n 's/.* dev \([^ ]*\).*/\1/p')
    gateway=$(printf %s "$route" | sed -n 's/.* via \([^ ]*\).*/\1/p')
    [ "$interface" = lo ] || [ "${named:-$interface}" = "$interface" ] || interface=$named gateway=
    say interface "$interface"
    say gateway "$gateway"
    if [ "$interface" ]; then
        say own "$(ip -o -4 addr show dev "$interface" 2> /dev/null | sed -n 's/.* inet \([0-9.]*\).*/\1/p' | head -n 1)"
        say driver "$(basename "$(readlink "/sys/class/net/$interface/device/driver")" 2> /dev/null)"
        say adaptive "$(for one in "$interface" $(lower "$interface"); do
            ethtool -c "$one" 2> /dev/null | sed -n 's/^Adaptive RX: \([a-z]*\).*/\1/p'
        done | sort | tail -n 1)"
    fi
fi
say rdma "$(ls /sys/class/infiniband 2> /dev/null | tr '\n' ' ')"
say verbs "$(rdma link show 2> /dev/null | sed -n "s|^link \([^ /]*\).* netdev ${interface:-none} *$|\1|p" | head -n 1)"
for program in mpirun mpiexec; do
    command -v "$mpi$program" > /dev/null || continue
    say launcher "$("$mpi$program" --version 2>&1 | tr '\n' ' ' | cut -c 1-200)"
    break
done
command -v "${mpi}mpicc" > /dev/null && say compiler yes
for tool do command -v "$tool" > /dev/null && say tool "$tool"; done
true
