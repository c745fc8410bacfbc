/* What GCC's C++ library calls that versions of glibc before 2.36 lack. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#pragma GCC visibility push(hidden)

/* Whether there is one thread alone: never said. */
char __libc_single_threaded;

unsigned arc4random(void);
unsigned arc4random(void) {
  unsigned number;
  if (getrandom(&number, sizeof number, 0) != sizeof number) abort();
  return number;
}

/* Time is waited for by the clock that older ones know. */
int pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  const long second = 1000000000;
  struct timespec now, end;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += until->tv_sec - now.tv_sec;
  end.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (end.tv_nsec < 0) {
    end.tv_sec -= 1;
    end.tv_nsec += second;
  } else if (end.tv_nsec >= second) {
    end.tv_sec += 1;
    end.tv_nsec -= second;
  }
  return pthread_cond_timedwait(condition, mutex, &end);
}
