package kvq_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kvq"
)

const oldLibrary = "KVQ_TEST_OLD_LIBRARY"

// A library of API version 0 in place of the real one: this program runs itself with it.
func TestAnOlderLibraryIsRefused(t *testing.T) {
	if os.Getenv(oldLibrary) != "" {
		_, err := kvq.NewContext(nil)
		_, deviceErr := kvq.DescribeDevice(kvq.DeviceCUDA, 0, "")
		var version *kvq.VersionError
		if !errors.As(err, &version) || !errors.As(deviceErr, &version) || version.Loaded != 0 || version.Needed < 1 {
			t.Fatalf("got the errors %v, %v", err, deviceErr)
		}
		fmt.Println(err)
		return
	}
	folder := t.TempDir()
	source, library := filepath.Join(folder, "old.c"), filepath.Join(folder, "libold.so")
	text := `int kvq_api_version(void) { return 0; } const char* kvq_version_string(void) { return "0.9.1"; }`
	require(t, os.WriteFile(source, []byte(text), 0o600))
	if output, err := exec.Command("cc", "-shared", "-fPIC", source, "-o", library).CombinedOutput(); err != nil {
		t.Fatalf("%s: %s", err, output)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestAnOlderLibraryIsRefused$", "-test.v")
	child.Env = append(os.Environ(), oldLibrary+"=1", "LD_PRELOAD="+library)
	output, err := child.CombinedOutput()
	const expected = "the loaded library 0.9.1 has API version 0, this package needs at least "
	if err != nil || !strings.Contains(string(output), expected) {
		t.Fatalf("%v: %s", err, output)
	}
}
