# The kernel's tracing, for tracing.py: `start KIB EVENT...`, `stop EVENT...`, `formats EVENT...` and `forget`.
cd /sys/kernel/tracing || exit
deed=$1
shift
case $deed in
start)
    set -e
    echo 0 >tracing_on
    echo nop >current_tracer
    echo mono_raw >trace_clock
    echo "$1" >buffer_size_kb
    echo >trace
    echo 'p:nearmetal/tcp_send tcp_sendmsg' >>kprobe_events
    echo 'p:nearmetal/tcp_receive tcp_recvmsg' >>kprobe_events
    echo 'vec == 3' >events/irq/softirq_entry/filter
    echo 'vec == 3' >events/irq/softirq_exit/filter
    shift
    for event; do echo 1 >"events/$event/enable"; done
    echo 1 >tracing_on
    ;;
stop)
    echo 0 >tracing_on
    for event; do echo 0 >"events/$event/enable"; done
    ;;
formats)
    for event; do echo "event: $event" && cat "events/$event/format"; done
    ;;
forget)
    echo 0 >events/irq/softirq_entry/filter
    echo 0 >events/irq/softirq_exit/filter
    echo '-:nearmetal/tcp_send' >>kprobe_events
    echo '-:nearmetal/tcp_receive' >>kprobe_events
    echo >trace
    ;;
esac
