package deps

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/test/lab/tools"
	"github.com/ironlb/ironlb/test/rare"
)

// TestNoTemplates finds programs that can execute a template: their linker keeps every exported method of every type,
// which costs many MB of memory. See docs/design/dependencies.md.
func TestNoTemplates(t *testing.T) {
	rare.Test(t)
	if testing.Short() {
		t.Skip("-short: this links the programs")
	}
	for _, program := range []string{"ironlb-ccm", "ironlb-speaker", "ironlb-bgpd"} {
		if fills(t, program, "-tags="+tools.Tags) {
			t.Errorf("%s fills templates: find the import with go build -ldflags=-dumpdep ./cmd/%s and leave it out", program, program)
		}
	}
	if !fills(t, "ironlb-ccm") {
		t.Errorf("ironlb-ccm fills no template without -tags=%s: leave the tag out of test/lab/tools and the Makefile", tools.Tags)
	}
}

// fills builds a program and reports whether it contains the function that calls a method named by a template.
func fills(t *testing.T, program string, flags ...string) bool {
	t.Helper()
	file := filepath.Join(t.TempDir(), program)
	args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", file}, flags...)
	cmd := exec.Command("go", append(args, module+"/cmd/"+program)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(cmd.Args[1:], " "), err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(data, []byte("text/template.(*state).evalField\x00")) // the runtime's table of functions
}

// TestMakeBuildsTheSame: make and the lab build the same programs.
func TestMakeBuildsTheSame(t *testing.T) {
	data, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "go build -trimpath -tags="+tools.Tags+" -ldflags='-s -w $(STAMP)' -o bin/ ") {
		t.Errorf("the Makefile does not build with -tags=%s as test/lab/tools does", tools.Tags)
	}
}
