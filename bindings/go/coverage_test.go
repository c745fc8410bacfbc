package kvq_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Package raw has every function of the header; this package uses all stable ones.
func TestEveryFunctionOfTheHeaderIsUsed(t *testing.T) {
	text, err := os.ReadFile("../kvq-api.json")
	if err != nil {
		t.Skip("this copy of the module has no ../kvq-api.json")
	}
	var api struct {
		Functions []struct {
			Name         string
			Experimental bool
		}
	}
	require(t, json.Unmarshal(text, &api))
	read := func(pattern string) (text string) {
		for _, path := range must(filepath.Glob(pattern))(t) {
			text += regexp.MustCompile("//.*").ReplaceAllString(string(must(os.ReadFile(path))(t)), "")
		}
		return text
	}
	wrapper := map[string]string{} // of the C function that it calls
	for _, function := range regexp.MustCompile(`(?ms)^func (\w+)\(.*?^}`).FindAllStringSubmatch(read("raw/*.go"), -1) {
		for _, call := range regexp.MustCompile(`C\.(kvq_go_\w+)`).FindAllStringSubmatch(function[0], -1) {
			wrapper[call[1]] = function[1]
		}
	}
	used := map[string]bool{}
	for _, name := range regexp.MustCompile(`\braw\.(\w+)`).FindAllStringSubmatch(read("*.go"), -1) {
		used[name[1]] = true
	}
	if len(api.Functions) < 77 {
		t.Fatalf("the header has %d functions", len(api.Functions))
	}
	for _, it := range api.Functions {
		if of, ok := wrapper["kvq_go_"+it.Name]; !ok || !it.Experimental && !used[of] {
			t.Errorf("%s is raw.%s, which nothing uses", it.Name, of)
		}
	}
}
