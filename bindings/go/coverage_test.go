package kvq_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
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
	files := token.NewFileSet()
	parsed := must(parser.ParseDir(files, "raw", nil, parser.SkipObjectResolution))(t)["raw"]
	wrapper := map[string]string{} // of the C function that it calls
	for _, file := range parsed.Files {
		for _, declaration := range file.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(function, func(node ast.Node) bool {
				if call, ok := node.(*ast.SelectorExpr); ok {
					wrapper[call.Sel.Name] = function.Name.Name
				}
				return true
			})
		}
	}
	used := map[string]bool{}
	for _, path := range must(filepath.Glob("*.go"))(t) {
		ast.Inspect(must(parser.ParseFile(files, path, nil, parser.SkipObjectResolution))(t), func(node ast.Node) bool {
			if selector, ok := node.(*ast.SelectorExpr); ok {
				if of, ok := selector.X.(*ast.Ident); ok && of.Name == "raw" {
					used[selector.Sel.Name] = true
				}
			}
			return true
		})
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
