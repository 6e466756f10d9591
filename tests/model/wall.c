/* The time of day, MODEL_WALL seconds later than it is. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int failed = syscall(SYS_clock_gettime, clock, time);
    const char *later = getenv("MODEL_WALL");
    if (!failed && clock == CLOCK_REALTIME && later)
        time->tv_sec += atoll(later);
    return failed;
}
