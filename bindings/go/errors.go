package kvq

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"kvq/raw"
)

// Status of a call that failed: one of the Err constants, and itself an error to compare with.
type Status int32

// String is the status's name in C.
func (s Status) String() string { return text(raw.StatusName(raw.Status(s))) }

// Error is the same.
func (s Status) Error() string { return s.String() }

// ErrClosed is what every method of a closed object answers with.
var ErrClosed = errors.New("kvq: the object is closed")

// Error of a call that failed.
type Error struct {
	Status      Status
	BackendCode int    // of the device's own library or of a hook, 0 if none
	Message     string // names the argument and its value
	Cause       error  // what a progress hook or a context.Context stopped the call with, or nil
}

// Error is the status's name and the message.
func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("kvq: %s: %s: %s", e.Status, e.Message, e.Cause)
	}
	return fmt.Sprintf("kvq: %s: %s", e.Status, e.Message)
}

// Is says whether target is this error's status.
func (e *Error) Is(target error) bool { return target == error(e.Status) }

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Cause }

// VersionError says that the library that was loaded is older than the header that this package was made from.
type VersionError struct {
	Loaded, Needed int    // API versions
	Version        string // of the library
}

// Error names both.
func (e *VersionError) Error() string {
	return fmt.Sprintf("kvq: the loaded library %s has API version %d, this package needs at least %d", e.Version,
		e.Loaded, e.Needed)
}

func checkVersion() error {
	if loaded := raw.APIVersion(); loaded < raw.HeaderAPIVersion {
		return &VersionError{int(loaded), raw.HeaderAPIVersion, Version()}
	}
	return nil
}

// Version of the loaded library, "major.minor.patch".
func Version() string { return text(raw.VersionString()) }

// argument is an error found before the library is called.
func argument(format string, values ...any) error {
	return &Error{Status: ErrArgument, Message: fmt.Sprintf(format, values...)}
}

// text is a string of C's; bytes that are no UTF-8 become U+FFFD.
func text(pointer *byte) string {
	if pointer == nil {
		return ""
	}
	length := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(pointer), length)) != 0 {
		length++
	}
	return strings.ToValidUTF8(string(unsafe.Slice(pointer, length)), "\uFFFD")
}

// terminated is a string for C, nil if it is empty and may be.
func terminated(name, s string) (*byte, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, argument("%s is %q, must not contain a zero byte", name, s)
	}
	return &append([]byte(s), 0)[0], nil
}

// optional is terminated, but nil for "".
func optional(name, s string) (*byte, error) {
	if s == "" {
		return nil, nil
	}
	return terminated(name, s)
}
