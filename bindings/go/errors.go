package kvq

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"kvq/raw"
)

// Status is the status of a failed call: one of the Err constants, and itself an error for errors.Is.
type Status int32

// String returns the status's name in C.
func (s Status) String() string { return text(raw.StatusName(raw.Status(s))) }

// Error returns the same as String.
func (s Status) Error() string { return s.String() }

// ErrClosed is returned by every method of a closed object.
var ErrClosed = errors.New("kvq: the object is closed")

// Error is the failure of a call.
type Error struct {
	Status      Status
	BackendCode int    // error code of the device's library or of a hook; 0 if none
	Message     string // names the argument and its value
	Cause       error  // error of the progress hook or context.Context that stopped the call, or nil
}

// Error returns the status's name and the message.
func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("kvq: %s: %s: %s", e.Status, e.Message, e.Cause)
	}
	return fmt.Sprintf("kvq: %s: %s", e.Status, e.Message)
}

// Is reports whether target is this error's status.
func (e *Error) Is(target error) bool { return target == error(e.Status) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// VersionError reports that the loaded library is older than the header that this package was generated from.
type VersionError struct {
	Loaded, Needed int    // API versions
	Version        string // version of the library
}

// Error names both versions.
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

// Version returns the version of the loaded library, "major.minor.patch".
func Version() string { return text(raw.VersionString()) }

// argument returns an error found before the library is called.
func argument(format string, values ...any) error {
	return &Error{Status: ErrArgument, Message: fmt.Sprintf(format, values...)}
}

// text converts a C string; invalid UTF-8 becomes U+FFFD.
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

// terminated converts a string for C; nil if it is empty and may be.
func terminated(name, s string) (*byte, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, argument("%s is %q, must not contain a zero byte", name, s)
	}
	return &append([]byte(s), 0)[0], nil
}

// optional is like terminated, but returns nil for "".
func optional(name, s string) (*byte, error) {
	if s == "" {
		return nil, nil
	}
	return terminated(name, s)
}
