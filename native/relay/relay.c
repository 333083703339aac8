/* nmrelay TAP0 TAP1: creates two tap devices and forwards frames between them until it is killed.
 *
 * Prints "ready" on stdout once both devices exist; they may then be renamed or moved to other network namespaces, the
 * relay keeps serving them. Exit status: 1 when a device cannot be created or fails, 2 for wrong arguments. A frame
 * that the other side does not accept (its queue is full, or it is down) is dropped, as on a wire.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { FRAME_BYTES = 1 << 17 }; /* larger than any frame, segmentation offload included */

static int open_tap(const char *name) {
    struct ifreq request;
    memset(&request, 0, sizeof request);
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (strlen(name) >= sizeof request.ifr_name) {
        fprintf(stderr, "nmrelay: '%s' is too long for an interface name\n", name);
        return -1;
    }
    memcpy(request.ifr_name, name, strlen(name));
    int tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (tap < 0) {
        fprintf(stderr, "nmrelay: /dev/net/tun: %s\n", strerror(errno));
        return -1;
    }
    if (ioctl(tap, TUNSETIFF, &request) < 0) {
        fprintf(stderr, "nmrelay: cannot create tap device %s: %s\n", name, strerror(errno));
        close(tap);
        return -1;
    }
    return tap;
}

/* Forward all frames that wait on `from`. Returns 0, or -1 when the device is gone. */
static int forward_frames(int from, int to) {
    static char frame[FRAME_BYTES];
    for (;;) {
        ssize_t length = read(from, frame, sizeof frame);
        if (length < 0) {
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        }
        ssize_t taken = write(to, frame, (size_t)length);
        if (taken < 0 && errno != EAGAIN && errno != EIO && errno != ENOBUFS && errno != EINTR) {
            return -1; /* EIO: the device is down, for now */
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: nmrelay TAP0 TAP1\n");
        return 2;
    }
    struct pollfd ends[2];
    for (int i = 0; i < 2; i++) {
        ends[i] = (struct pollfd){.fd = open_tap(argv[i + 1]), .events = POLLIN};
        if (ends[i].fd < 0) {
            return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        if (poll(ends, 2, -1) < 0 && errno != EINTR) {
            perror("nmrelay: poll");
            return 1;
        }
        for (int i = 0; i < 2; i++) {
            if (ends[i].revents & POLLIN && forward_frames(ends[i].fd, ends[1 - i].fd) < 0) {
                perror("nmrelay: a tap device failed");
                return 1;
            }
        }
    }
}
