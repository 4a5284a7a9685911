package main

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/test/lab/guest"
)

// asGuest makes the test binary behave as the command.
const asGuest = "IRONLB_TEST_AS_GUEST"

func TestMain(m *testing.M) {
	if os.Getenv(asGuest) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, args...)
	c.Env = append(os.Environ(), asGuest+"=1")
	return c
}

// TestWith runs the command the way make does: one boot, and go test with
// "guest exec" in it, in the package's folder and with its variables.
func TestWith(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a guest, which -short leaves out")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := `set -u
t() { go test -count=1 -exec "$1 exec --" .; }
t "$1" || exit 10
LAB_FAIL=1 t "$1" && exit 11
"$1" exec -- sh -c 'exit 42'
[ $? = 42 ] || exit 12
echo typed | "$1" exec -- cat
# A real terminal on both sides.
script -qec "stty rows 31 cols 97; \"$1\" exec -- sh -c 'tty; stty size'" /dev/null </dev/null
exit 3`
	c := command(t, "with", "--", "sh", "-c", script, "sh", self)
	output := filepath.Join(t.TempDir(), "output")
	c.Dir, c.Env = "testdata/inside", append(c.Env, "LAB_OUTPUT="+output)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Fatalf("have %v, want status 3\n%s\n%s", err, &out, &errs)
	}
	for _, want := range []string{"typed\n", "31 97"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, &out)
		}
	}
	if b, err := os.ReadFile(output); err != nil || string(b) != "from the guest" {
		t.Errorf("output file: %q, %v", b, err)
	}
}

func TestBadCalls(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "which subcommand"},
		{[]string{"boot"}, "unknown subcommand"},
		{[]string{"run"}, "no command"},
		{[]string{"serve"}, "--socket is needed"},
		{[]string{"probe", "extra"}, "unexpected"},
		{[]string{"exec", "--socket", "/no/such/socket", "--", "true"}, "reach the guest"},
	} {
		out, err := command(t, tt.args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != ownFailure || !strings.Contains(string(out), tt.want) {
			t.Errorf("guest %v: %v, %q; want status %d and %q", tt.args, err, out, ownFailure, tt.want)
		}
	}
}

// TestExecWithout: without a guest, a command runs here or fails because of the kernel. It never succeeds without being
// run.
func TestExecWithout(t *testing.T) {
	c := command(t, "exec", "--", "sh", "-c", "exit 5")
	c.Env = append(c.Env, socketEnv+"=")
	want := ownFailure
	if guest.Probe() == nil {
		want = 5
	}
	var exit *exec.ExitError
	if err := c.Run(); !errors.As(err, &exit) || exit.ExitCode() != want {
		t.Errorf("have %v, want status %d", err, want)
	}
}

// TestListen: a socket in use is refused, and a socket of an ended process is taken over.
func TestListen(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(socket); err == nil || !strings.Contains(err.Error(), "choose another path") {
		t.Errorf("socket in use: have %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	l, err = listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
