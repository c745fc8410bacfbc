/* Counting checks for the C tests: a failed check prints where and why, and the run goes on. */
#ifndef KVQ_TESTS_CAPI_CHECK_H
#define KVQ_TESTS_CAPI_CHECK_H

#include "kvq.h"

/* The last argument of every call under test. The macros below point it at `last_error`, and for refused calls a second
 * time at NULL, so that every error path is also taken without an error object. */
extern kvq_error last_error;
extern kvq_error* err;

void check(int condition, const char* file, int line, const char* what);
void check_accepted(kvq_status status, const char* file, int line, const char* what);
void check_refused(kvq_status status, kvq_status expected, const char* mention, const char* file, int line,
                   const char* what);
void check_message(const char* mention, const char* file, int line);
/* Reset the previous call's error, to notice a call that leaves the error untouched. */
void spoil_last_error(void);
/* Print the totals; returns the exit status of the program. */
int finish_checks(void);

/* So many threads, or the caller's alone where there are no others. */
#if defined(__EMSCRIPTEN__)
#define THREADS(n) ((n) > 1 ? 1 : (n))
#else
#define THREADS(n) (n)
#endif

#define CHECK(condition) check((condition) ? 1 : 0, __FILE__, __LINE__, #condition)

#define ACCEPTED(call)                                 \
  do {                                                 \
    spoil_last_error();                                \
    err = &last_error;                                 \
    check_accepted((call), __FILE__, __LINE__, #call); \
  } while (0)

/* `mention` is a word that the message must contain, such as the argument's name, or NULL. */
#define REFUSED(expected, mention, call)                                     \
  do {                                                                       \
    err = NULL;                                                              \
    CHECK((call) == (expected));                                             \
    spoil_last_error();                                                      \
    err = &last_error;                                                       \
    check_refused((call), (expected), (mention), __FILE__, __LINE__, #call); \
  } while (0)

/* The message of the preceding REFUSED also contains `mention`. */
#define ALSO_MENTIONS(mention) check_message((mention), __FILE__, __LINE__)

#endif
