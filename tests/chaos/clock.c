/* A wall clock that can be stepped: as many microseconds ahead of the machine's as the
 * shared file CHAOS_CLOCK says (eight bytes, big endian). For LD_PRELOAD.
 *
 * PostgreSQL reads the clock in signal handlers too, so nothing here may allocate or
 * open a file: the file is mapped once, before main. Monotonic clocks and timers are
 * left alone, as a step of the real clock leaves them.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile uint64_t *shared;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *found;

    if (file < 0)
        return;
    found = mmap(NULL, sizeof *shared, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        shared = found;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    uint64_t ahead;
    int64_t nanoseconds;
    int status;

    /* Again after a step in between: a time of before it with what it added is one that
     * this clock never showed, and a process may be put aside there for long. */
    do
    {
        ahead = shared ? *shared : 0;
        status = (int) syscall(SYS_clock_gettime, id, now);
    } while (shared && ahead != *shared);

    if (status == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
    {
        nanoseconds = now->tv_sec * INT64_C(1000000000) + now->tv_nsec
            + (int64_t) be64toh(ahead) * 1000;
        now->tv_sec = nanoseconds / 1000000000;
        now->tv_nsec = nanoseconds % 1000000000;
    }
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;

    (void) zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec exact;

    clock_gettime(CLOCK_REALTIME, &exact);
    if (now)
        *now = exact.tv_sec;
    return exact.tv_sec;
}
