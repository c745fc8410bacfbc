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
	var source strings.Builder
	versions := map[string]string{} // of symbols, as the loader compares them
	for _, it := range headerFunctions(t) {
		if it.Name != "kvq_version_string" {
			fmt.Fprintf(&source, "long %s(void) { return 0; }\n", it.Name)
		}
		version := "KVQ_" + it.Since
		if it.Experimental {
			version = "KVQ_EXPERIMENTAL"
		}
		versions[version] += it.Name + "; "
	}
	var script strings.Builder
	for version, names := range versions {
		fmt.Fprintf(&script, "%s { %s};\n", version, names)
	}
	source.WriteString("const char* kvq_version_string(void) { return \"0.9.1\"; }\n")
	folder := t.TempDir()
	path := filepath.Join(folder, "old.c")
	require(t, os.WriteFile(path, []byte(source.String()), 0o600))
	symbols := filepath.Join(folder, "old.map")
	require(t, os.WriteFile(symbols, []byte(script.String()), 0o600))
	compiler := "cc"
	if named := os.Getenv("CC"); named != "" {
		compiler = named
	}
	build := exec.Command(compiler, "-shared", "-fPIC", "-Wl,-soname,libkvq.so.1", "-Wl,--version-script,"+symbols,
		path, "-o", filepath.Join(folder, "libkvq.so.1"))
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %s", err, output)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestAnOlderLibraryIsRefused$", "-test.v")
	child.Env = append(os.Environ(), oldLibrary+"=1", "LD_LIBRARY_PATH="+folder)
	output, err := child.CombinedOutput()
	const expected = "the loaded library 0.9.1 has API version 0, this package needs at least "
	if err != nil || !strings.Contains(string(output), expected) {
		t.Fatalf("%v: %s", err, output)
	}
}
