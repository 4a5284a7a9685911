// Package cgroup gives each node of a lab a cgroup of its own in every mounted hierarchy, of version 1 and 2.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	mounts = "/proc/self/mounts"

	// leaf holds the node's own processes in version 2, where a cgroup with controllers for its children holds no
	// process (Documentation/admin-guide/cgroup-v2.rst, "No Internal Process Constraint").
	leaf = "system"

	// share is the weight of a node against everything outside of the nodes: the control plane, clients and tests would
	// run on other machines, and must not delay what a node does.
	share = 20
)

// hierarchy is a mounted cgroup filesystem.
type hierarchy struct {
	dir     string
	version int
}

func hierarchies() ([]hierarchy, error) {
	data, err := os.ReadFile(mounts)
	if err != nil {
		return nil, fmt.Errorf("list the cgroup hierarchies: %w", err)
	}
	var all []hierarchy
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 3 || slices.ContainsFunc(all, func(h hierarchy) bool { return h.dir == f[1] }) {
			continue
		}
		switch f[2] {
		case "cgroup":
			all = append(all, hierarchy{f[1], 1})
		case "cgroup2":
			all = append(all, hierarchy{f[1], 2})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: mount one at /sys/fs/cgroup")
	}
	return all, nil
}

// Make creates the named cgroup in every hierarchy. It may exist.
func Make(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := h.make(name); err != nil {
			return fmt.Errorf("make cgroup %s in %s: %w", name, h.dir, err)
		}
	}
	return nil
}

func (h hierarchy) make(name string) error {
	dir := filepath.Join(h.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if h.version == 2 {
		if err := errors.Join(delegate(h.dir), delegate(dir), weigh(filepath.Join(dir, "cpu.weight"), 100)); err != nil {
			return err
		}
		return os.MkdirAll(filepath.Join(dir, leaf), 0o755)
	}
	if err := weigh(filepath.Join(dir, "cpu.shares"), 1024); err != nil {
		return err
	}
	// A new cpuset is empty, and accepts no process before it has cores and memory
	// (Documentation/admin-guide/cgroup-v1/cpusets.rst).
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		parent, err := os.ReadFile(filepath.Join(h.dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), parent, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// weigh sets the weight of a cgroup, given that of one process. A hierarchy without the controller has no such file.
func weigh(file string, one int) error {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.WriteFile(file, strconv.AppendInt(nil, int64(share*one), 10), 0)
}

// delegate enables all controllers of a cgroup for its children.
func delegate(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(data)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
			return fmt.Errorf("enable controller %s in %s: %w", controller, dir, err)
		}
	}
	return nil
}

// Join moves the calling process into the named cgroup of every hierarchy.
func Join(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(h.dir, name)
		if h.version == 2 {
			dir = filepath.Join(dir, leaf)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// endIn is the time that Remove waits for killed processes. A process stays in its cgroup until its parent has read its
// status, and its PID namespace until all processes in it have ended.
const endIn = 20 * time.Second

// Remove removes the cgroups whose names match the pattern of path/filepath, with their children. Their processes must
// have been signaled to end. A missing cgroup is no error.
func Remove(pattern string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range all {
		found, err := filepath.Glob(filepath.Join(h.dir, pattern))
		errs = append(errs, err)
		for _, dir := range found {
			errs = append(errs, removeTree(dir))
		}
	}
	return errors.Join(errs...)
}

// removeTree removes a cgroup, children first.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	deadline := time.Now().Add(endIn)
	for _, d := range slices.Backward(dirs) {
		err := syscall.Rmdir(d)
		for errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline) {
			<-time.After(10 * time.Millisecond)
			err = syscall.Rmdir(d)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cgroup %s: %w", d, err)
		}
	}
	return nil
}
