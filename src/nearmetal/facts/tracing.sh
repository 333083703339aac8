# The kernel's tracing, for tracing.py: `start KIB EVENT...`, `stop`, `formats EVENT...` and `forget`.
# All in an instance: buffers, clock, events and filters of its own, which vanish with it. Whatever else traces this
# machine keeps what it has set and recorded. Two probes alone are the whole kernel's, under names of ours.
cd /sys/kernel/tracing || exit
own=instances/nearmetal
deed=$1
shift
remove_probes() {
    echo '-:nearmetal/tcp_send' >>kprobe_events
    echo '-:nearmetal/tcp_receive' >>kprobe_events
}
forget() {
    rmdir $own
    remove_probes
}
case $deed in
start)
    mkdir $own || exit
    trap 'status=$?; [ $status = 0 ] || forget 2>/dev/null; exit $status' EXIT
    [ -w kprobe_events ] || { echo "no kprobes in $PWD" >&2; exit 1; }
    remove_probes 2>/dev/null # of a launch that was killed
    set -e
    echo 'p:nearmetal/tcp_send tcp_sendmsg' >>kprobe_events
    echo 'p:nearmetal/tcp_receive tcp_recvmsg' >>kprobe_events
    cd $own || exit
    echo 0 >tracing_on
    echo mono_raw >trace_clock
    echo "$1" >buffer_size_kb
    echo 'vec == 3' >events/irq/softirq_entry/filter
    echo 'vec == 3' >events/irq/softirq_exit/filter
    shift
    for event; do echo 1 >"events/$event/enable"; done
    echo 1 >tracing_on
    cd ../.. # where `forget` expects to be
    ;;
stop)
    echo 0 >$own/tracing_on
    ;;
formats)
    for event; do echo "event: $event" && cat "$own/events/$event/format"; done
    ;;
forget)
    forget
    ;;
esac
