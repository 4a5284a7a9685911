package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	events := `{"Action":"output","Package":"p","Test":"TestA","Output":"all is well\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestB","Output":"b_test.go:1: it broke\n"}
{"Action":"fail","Package":"p","Test":"TestB","Elapsed":0.1}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"skip","Package":"p","Test":"TestD"}
{"Action":"fail","Package":"p","Elapsed":1.5}
{"Action":"build-output","ImportPath":"q","Output":"q.go:1: no such thing\n"}
{"Action":"output","Package":"r","Test":"TestHang","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"r","Elapsed":600}
{"Action":"pass","Package":"a/s","Test":"TestSlow/part","Elapsed":30}
{"Action":"pass","Package":"a/s","Test":"TestSlow","Elapsed":30.2}
{"Action":"pass","Package":"s","Elapsed":0.25}
`
	var out bytes.Buffer
	s := newSummary(&out)
	if err := s.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	if got := s.close([]string{"p TestC"}); got != 1 {
		t.Errorf("close reported %d unlisted skips, want 1", got)
	}
	const want = `b_test.go:1: it broke
FAIL  p                                                       1.5s
q.go:1: no such thing
panic: test timed out
FAIL  r                                                       10m0s
ok    s                                                       250ms
skipped, and not listed in test/skips.txt: p TestD
slow  s TestSlow                                              30s
3 passed, 2 failed, 1 skipped
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

// A skip fails a full run and not a short one; a failed test fails both.
func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		skipsFile: "# none\n",
		"go.mod":  "module example.org/m\n",
		"skip/skip_test.go": "package skip\n\nimport \"testing\"\n\n" +
			"func TestSkip(t *testing.T) { t.Skip() }\n",
		"fail/fail_test.go": "package fail\n\nimport \"testing\"\n\n" +
			"func TestFail(t *testing.T) { t.Fail() }\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args []string
		ok   bool
	}{
		{[]string{"./skip"}, false},
		{[]string{"-short", "./skip"}, true},
		{[]string{"-short", "./fail"}, false},
		{[]string{"-short", "./missing"}, false},
	} {
		ok, err := run(append([]string{"test", "-json"}, tt.args...))
		if err != nil || ok != tt.ok {
			t.Errorf("go test %q: ok is %v (%v), want %v", tt.args, ok, err, tt.ok)
		}
	}
}
