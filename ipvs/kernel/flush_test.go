package kernel

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestNoFlush: the library's Flush deletes the virtual servers of every program, and its handle is only used as an
// interface without it.
func TestNoFlush(t *testing.T) {
	calls := reflect.TypeFor[library]()
	for i := range calls.NumMethod() {
		if name := calls.Method(i).Name; strings.Contains(name, "Flush") {
			t.Errorf("the interface of the library has %s", name)
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no source files here: %v", err)
	}
	handles := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			selector, is := n.(*ast.SelectorExpr)
			if !is {
				return true
			}
			if selector.Sel.Name == "Flush" {
				t.Errorf("%s calls Flush", name)
			}
			if from, is := selector.X.(*ast.Ident); is && from.Name == "mobyipvs" && selector.Sel.Name == "Handle" {
				handles++
			}
			return true
		})
	}
	if handles != 1 { // the variable in openLibrary
		t.Errorf("mobyipvs.Handle is named %d times, want 1", handles)
	}
}
