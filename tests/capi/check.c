#include "check.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

kvq_error last_error;
kvq_error* err = &last_error;

static int n_passed = 0;
static int n_failed = 0;

void check(int condition, const char* file, int line, const char* what) {
  if (condition) {
    ++n_passed;
    return;
  }
  ++n_failed;
  printf("%s:%d: failed: %s\n", file, line, what);
}

void spoil_last_error(void) {
  kvq_error_init(&last_error, sizeof(last_error));
  last_error.code = 12345;
  last_error.backend_code = 12345;
  strcpy(last_error.message, "left over from an earlier call");
}

static int is_word(char c) { return c == '_' || isalnum((unsigned char)c); }

/* Whether `word` occurs in the message as a whole word. */
static int mentions(const char* word) {
  const size_t n = strlen(word);
  const char* found = last_error.message;
  while ((found = strstr(found, word)) != NULL) {
    const int starts = found == last_error.message || !is_word(word[0]) || !is_word(found[-1]);
    if (starts && (!is_word(word[n - 1]) || !is_word(found[n]))) return 1;
    ++found;
  }
  return 0;
}

void check_accepted(kvq_status status, const char* file, int line, const char* what) {
  const int quiet = last_error.code == KVQ_OK && last_error.message[0] == '\0';
  if (status == KVQ_OK && quiet) {
    ++n_passed;
    return;
  }
  ++n_failed;
  printf("%s:%d: expected success: %s\n  returned %s, error code %d, \"%s\"\n", file, line, what,
         kvq_status_name(status), (int)last_error.code, last_error.message);
}

void check_refused(kvq_status status, kvq_status expected, const char* mention, const char* file, int line,
                   const char* what) {
  const int told = last_error.code == status && memchr(last_error.message, '\0', sizeof last_error.message) != NULL &&
                   last_error.message[0] != '\0';
  if (status == expected && told && (mention == NULL || mentions(mention))) {
    ++n_passed;
    return;
  }
  ++n_failed;
  printf("%s:%d: expected %s, mentioning \"%s\": %s\n  returned %s, error code %d, \"%s\"\n", file, line,
         kvq_status_name(expected), mention == NULL ? "" : mention, what, kvq_status_name(status), (int)last_error.code,
         last_error.message);
}

void check_message(const char* mention, const char* file, int line) {
  if (mentions(mention)) {
    ++n_passed;
    return;
  }
  ++n_failed;
  printf("%s:%d: the message \"%s\" does not mention \"%s\"\n", file, line, last_error.message, mention);
}

int finish_checks(void) {
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed == 0 ? 0 : 1;
}
