package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cgroup is a cgroup of version 2 of one process and its children. It enables no controller, so it does not change how
// they are scheduled.
type cgroup struct{ dir string }

// mountPoint returns where cgroups of version 2 are mounted, by the content of /proc/mounts.
func mountPoint(mounts string) (string, error) {
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", errors.New("no cgroup2 filesystem is mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")
}

// enclose moves a process into a new cgroup. Children that it has already stay outside.
func enclose(pid int) (g cgroup, err error) {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return g, err
	}
	root, err := mountPoint(string(mounts))
	if err != nil {
		return g, err
	}
	g.dir = filepath.Join(root, fmt.Sprintf("bench-idle-%d", pid))
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return g, err
	}
	err = os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	if err != nil {
		return g, errors.Join(err, g.remove())
	}
	return g, nil
}

// removeLimit is the time for processes that were killed to leave the cgroup.
const removeLimit = 10 * time.Second

// remove removes the cgroup after the processes in it were killed, or have ended.
func (g cgroup) remove() error {
	deadline := time.Now().Add(removeLimit)
	for {
		err := os.Remove(g.dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		<-time.After(10 * time.Millisecond)
	}
}

// cpu returns the CPU time of all processes that are or were in the cgroup.
func (g cgroup) cpu() (time.Duration, error) {
	file := filepath.Join(g.dir, "cpu.stat")
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	usage, err := usageOf(string(text))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return usage, nil
}

// usageOf parses the content of cpu.stat.
func usageOf(stat string) (time.Duration, error) {
	for line := range strings.Lines(stat) {
		if usage, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(usage), 10, 64)
			return time.Duration(n) * time.Microsecond, err
		}
	}
	return 0, errors.New("no usage_usec")
}
