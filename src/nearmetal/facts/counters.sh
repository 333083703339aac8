# Prints `INTERFACE COUNTER VALUE` for each of the counters named as arguments, of every port of every RDMA device.
# A port of RoCE names its interface beside its GIDs, one of InfiniBand beside its device; others stand alone.
cd /sys/class/infiniband 2> /dev/null || exit 0
for port in */ports/*; do
    device=${port%%/*}
    interface=$(cat "$port/gid_attrs/ndevs/0" 2> /dev/null) || interface=
    test -n "$interface" || interface=$(ls "$device/device/net" 2> /dev/null | head -n 1)
    for counter do
        for file in "$port/counters/$counter" "$port/hw_counters/$counter"; do
            value=$(cat "$file" 2> /dev/null) && echo "${interface:-$device} $counter $value"
        done
    done
done
true
