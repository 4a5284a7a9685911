package kernel_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/ipvs"
)

// A scheduler whose module exists for this kernel but not on this node causes an error that names the module; other ops
// continue. As soon as the module is installed, the same process uses it (ipvs.md 1.5, T27).
func TestSchedulerWithoutItsModule(t *testing.T) {
	const scheduler = "fo"
	k, _ := openNew(t)
	restore := hideModule(t, "ip_vs_"+scheduler)
	if err := k.Probe(scheduler); !errors.Is(err, ipvs.ErrNoScheduler) || !strings.Contains(err.Error(), "modprobe ip_vs_"+scheduler) {
		t.Errorf("Probe = %v, want ErrNoScheduler that names \"modprobe ip_vs_%s\"", err, scheduler)
	}
	lacks := ipvs.Op{Action: ipvs.AddVirtual, Virtual: web, Settings: ipvs.Settings{Scheduler: scheduler}}
	has := ipvs.Op{Action: ipvs.AddVirtual, Virtual: dns, Settings: ipvs.Settings{Scheduler: ipvs.RoundRobin}}
	done, err := k.Apply([]ipvs.Op{lacks, has})
	if len(done) != 1 || done[0] != has || !errors.Is(err, ipvs.ErrNoScheduler) || !strings.Contains(err.Error(), web.String()) {
		t.Errorf("Apply did %v, %v; want %v done and ErrNoScheduler of %v", done, err, has, web)
	}
	if got, err := k.Virtuals(); err != nil || len(got) != 1 || got[dns].Scheduler != ipvs.RoundRobin {
		t.Errorf("Virtuals = %v, %v; want %v alone", got, err, dns)
	}

	restore()
	if err := k.Probe(scheduler); err != nil {
		t.Errorf("Probe with the module back: %v", err)
	}
	if _, err := k.Apply([]ipvs.Op{lacks}); err != nil {
		t.Errorf("Apply with the module back: %v", err)
	}
}

// hideModule unloads a module and removes its file until restore, or the end of the test. This affects the complete
// machine, as modules do: the kernel does not search them in the caller's mount namespace.
func hideModule(t *testing.T, name string) (restore func()) {
	t.Helper()
	path, err := exec.Command("modinfo", "-n", name).Output()
	if err != nil || !strings.HasPrefix(string(path), "/") {
		t.Fatalf("this test needs module %s as a file: %q, %v", name, path, err)
	}
	file := strings.TrimSpace(string(path))
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(time.Minute); ; { // an earlier test's module use ends with its namespace, slightly later
		out, err := exec.Command("modprobe", "-r", name).CombinedOutput()
		if _, loaded := os.Stat("/sys/module/" + name); errors.Is(loaded, os.ErrNotExist) {
			break
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("module %s cannot be unloaded: %v %s", name, err, out)
		}
	}
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
