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

// headerFunction is one function of the header.
type headerFunction struct {
	Name, Since  string
	Experimental bool
}

// headerFunctions are all of them; not every copy of this module has the list beside it.
func headerFunctions(t *testing.T) []headerFunction {
	text, err := os.ReadFile("../kvq-api.json")
	if err != nil {
		t.Skip("this copy of the module has no ../kvq-api.json")
	}
	var api struct{ Functions []headerFunction }
	require(t, json.Unmarshal(text, &api))
	return api.Functions
}

// Package raw has all of them, this package uses the stable ones.
func TestEveryFunctionOfTheHeaderIsUsed(t *testing.T) {
	functions := headerFunctions(t)
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
	if len(functions) < 77 {
		t.Fatalf("the header has %d functions", len(functions))
	}
	for _, it := range functions {
		if of, ok := wrapper["kvq_go_"+it.Name]; !ok || !it.Experimental && !used[of] {
			t.Errorf("%s is raw.%s, which nothing uses", it.Name, of)
		}
	}
}
