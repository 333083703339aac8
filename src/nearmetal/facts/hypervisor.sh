# What disturbs guests on the machine that runs them: MTUs, irqbalance, deep idle states.
# Lines of `KIND NAME NUMBER`; one script, because each command may cost a round trip.
for file in /sys/class/net/*/mtu; do
    name=${file%/mtu}; [ -r "$file" ] && echo "mtu ${name##*/} $(cat "$file")"
done
for file in /proc/[0-9]*/comm; do
    read -r name < "$file" 2>/dev/null && [ "$name" = irqbalance ] && echo "running irqbalance 1"
done
for state in /sys/devices/system/cpu/cpu0/cpuidle/state*; do
    [ -r "$state/latency" ] && [ "$(cat "$state/disable")" = 0 ] || continue
    echo "idle $(cat "$state/name") $(cat "$state/latency")"
done
true
