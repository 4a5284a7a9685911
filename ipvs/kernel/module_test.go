package kernel

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	mobyipvs "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestIPVSLoadedLater runs in a process of its own, because the library requests the netlink family once in the life of
// a process: it must do so only when the family exists. It is in package kernel, whose tests run before those of
// kernel_test: after their traffic ip_vs stays in use for more than a minute.
func TestIPVSLoadedLater(t *testing.T) {
	if testing.Short() {
		t.Skip("capability: root, to unload a module (left out in short mode)")
	}
	if !inOwnProcess(t) {
		return
	}
	show := HideModule(t, "ip_vs")
	if k, err := Open(); !errors.Is(err, ipvs.ErrNoModule) {
		t.Fatalf("Open without the module = %v, %v; want ErrNoModule", k, err)
	}
	show()
	k, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := k.Probe(ipvs.RoundRobin); err != nil {
		t.Error(err)
	}
	if timeouts, err := k.Timeouts(); err != nil || timeouts.TCP == 0 {
		t.Errorf("Timeouts = %v, %v", timeouts, err)
	}
}

// TestLibraryWithoutFamily uses the library before the module is loaded, in a process of its own, too: the library then
// never reaches IPVS, and without the check reports success for everything.
func TestLibraryWithoutFamily(t *testing.T) {
	if testing.Short() {
		t.Skip("capability: root, to unload a module (left out in short mode)")
	}
	if !inOwnProcess(t) {
		return
	}
	show := HideModule(t, "ip_vs")
	early, err := mobyipvs.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	show()
	if k, err := Open(); !errors.Is(err, ipvs.ErrNoModule) {
		t.Errorf("Open = %v, %v; want ErrNoModule", k, err)
	}
}

// inOwnProcess runs the test in a process of its own and fails it if that fails. It reports true in that process.
func inOwnProcess(t *testing.T) bool {
	t.Helper()
	const child = "IRONLB_TEST_CHILD"
	if os.Getenv(child) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// HideModule unloads a module and removes its file until restore, or the end of the test. This affects the complete
// machine, as modules do: the kernel does not search them in the caller's mount namespace.
func HideModule(t *testing.T, name string) (restore func()) {
	t.Helper()
	path, err := exec.Command("modinfo", "-n", name).Output()
	if err != nil || !strings.HasPrefix(string(path), "/") {
		t.Fatalf("this test needs module %s as a file: %q, %v", name, path, err)
	}
	file := strings.TrimSpace(string(path))
	// An earlier test's module use ends with its namespace, slightly later.
	eventually.Nil(t, time.Minute, "the end of module "+name, func(context.Context) error {
		holders, _ := os.ReadDir("/sys/module/" + name + "/holders")
		for _, holder := range holders {
			_ = exec.Command("modprobe", "-r", holder.Name()).Run()
		}
		out, err := exec.Command("modprobe", "-r", name).CombinedOutput()
		_, loaded := os.Stat("/sys/module/" + name)
		return eventually.Unless(errors.Is(loaded, os.ErrNotExist), "it cannot be unloaded: %v %s", err, out)
	})
	if err := unix.Mount("/dev/null", file, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("hide %s: %v", file, err)
	}
	hidden := true
	restore = func() {
		if !hidden {
			return
		}
		hidden = false
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			t.Errorf("show %s again: %v", file, err)
		}
	}
	t.Cleanup(restore)
	return restore
}
