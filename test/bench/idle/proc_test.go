package main

import (
	"os"
	"testing"
	"time"
)

func TestField(t *testing.T) {
	const status = "Name:\tironlb-speaker\nVmRSS:\t  123456 kB\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t3\n"
	for name, want := range map[string]string{"Name": "ironlb-speaker", "VmRSS": "123456 kB", "voluntary_ctxt_switches": "17"} {
		if have, err := field(status, name); have != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", name, have, err, want)
		}
	}
	if _, err := field(status, "VmSwap"); err == nil {
		t.Error("a line that is missing was found")
	}
}

// Of this process: it has threads, CPU time and memory.
func TestOwnProcess(t *testing.T) {
	all, err := threads(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var cpu time.Duration
	for _, th := range all {
		cpu += th.cpu
	}
	if cpu <= 0 {
		t.Errorf("%d threads have used %v", len(all), cpu)
	}
	rss, err := megabytes(os.Getpid(), "status", "VmRSS")
	if err != nil {
		t.Fatal(err)
	}
	pss, err := megabytes(os.Getpid(), "smaps_rollup", "Pss")
	if err != nil {
		t.Fatal(err)
	}
	if rss < 1 || pss <= 0 || pss > rss+1 {
		t.Errorf("RSS %.1f MB, Pss %.1f MB", rss, pss)
	}
}

func TestCgroupFiles(t *testing.T) {
	at, err := mountPoint("cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n")
	if at != "/sys/fs/cgroup/unified" || err != nil {
		t.Errorf("mount point %q, %v", at, err)
	}
	if _, err := mountPoint("cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n"); err == nil {
		t.Error("a mount point without cgroup2")
	}
	usage, err := usageOf("usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n")
	if usage != 1500*time.Microsecond || err != nil {
		t.Errorf("usage %v, %v", usage, err)
	}
	if _, err := usageOf("user_usec 1000\n"); err == nil {
		t.Error("usage of a file without usage_usec")
	}
}
