package lab

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/ironlb/ironlb/test/lab/cgroup"
)

// claims is a folder with a file for each lab on this machine. The file has the lab's name and holds the path of its
// scratch folder. The lab keeps it locked; the kernel unlocks it when the lab's process ends.
const claims = "/run/ironlb-lab"

const netnsDir = "/run/netns"

// labName matches the prefix of the names of labs and of their namespaces.
var labName = regexp.MustCompile(`^(ilb([0-9]+)(?:x[0-9]+)?)(?:-|$)`)

var labs atomic.Int64 // of this process

// claimScratch takes a name and a scratch folder. Before, it removes the residual state of labs whose process has
// ended.
func (c *Cluster) claimScratch() error {
	return alone(func() error {
		if err := collect(); err != nil {
			return err
		}
		return c.claim()
	})
}

func (c *Cluster) claim() error {
	c.name = fmt.Sprintf("ilb%d", os.Getpid())
	if n := labs.Add(1); n > 1 {
		c.name += fmt.Sprintf("x%d", n)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find the cache folder: %w; set HOME", err)
	}
	c.Dir = filepath.Join(cache, "ironlb", "lab", c.name)
	claim, err := lockClaim(filepath.Join(claims, c.name))
	if err != nil {
		return fmt.Errorf("claim the name %s: %w", c.name, err)
	}
	c.onClose(func() error {
		err := errors.Join(removeNamespaces(c.name), os.RemoveAll(c.Dir), os.Remove(claim.Name()))
		return errors.Join(err, claim.Close())
	})
	if _, err := claim.WriteAt([]byte(c.Dir), 0); err != nil {
		return fmt.Errorf("claim the name %s: %w", c.name, err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("make the scratch folder: %w", err)
	}
	log, err := os.Create(filepath.Join(c.Dir, "lab.log"))
	if err != nil {
		return fmt.Errorf("make the lab's log: %w", err)
	}
	c.onClose(log.Close)
	c.log = slog.New(slog.NewTextHandler(log, nil))
	return nil
}

func lockClaim(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Collect removes the residual state of labs whose process has ended: namespaces with their links, and scratch folders.
// The kernel has ended their processes.
func Collect() error { return alone(collect) }

// alone prevents labs that start at the same time from removing one another's incomplete claims.
func alone(do func() error) error {
	if err := os.MkdirAll(claims, 0o755); err != nil {
		return fmt.Errorf("claim a name for the lab: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(claims, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("claim a name for the lab: %w", err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return do()
}

func collect() error {
	var errs []error
	files, err := filepath.Glob(filepath.Join(claims, "ilb*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		claim, err := lockClaim(file)
		if err != nil {
			continue // its lab is running
		}
		dir, err := os.ReadFile(file)
		name := filepath.Base(file)
		errs = append(errs, err, removeNamespaces(name), cgroup.Remove(name+"-*"))
		if filepath.Base(string(dir)) == filepath.Base(file) {
			errs = append(errs, os.RemoveAll(string(dir)))
		}
		errs = append(errs, os.Remove(file), claim.Close())
	}
	errs = append(errs, collectUnclaimed())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what an earlier lab left: %w", err)
	}
	return nil
}

// collectUnclaimed removes namespaces named as a lab's that have no claim and whose process has ended.
func collectUnclaimed() error {
	names, err := namespaces()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		m := labName.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		pid, err := strconv.Atoi(m[2])
		if err != nil || syscall.Kill(pid, 0) == nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(claims, m[1])); err == nil {
			continue
		}
		errs = append(errs, removeNamespace(name))
	}
	return errors.Join(errs...)
}

// namespaces lists the named network namespaces of this machine.
func namespaces() ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// removeNamespaces removes the namespaces of the named lab.
func removeNamespaces(lab string) error {
	names, err := namespaces()
	errs := []error{err}
	for _, name := range names {
		if m := labName.FindStringSubmatch(name); m != nil && m[1] == lab {
			errs = append(errs, removeNamespace(name))
		}
	}
	return errors.Join(errs...)
}

// removeNamespace kills the processes in the lab's namespace, and deletes it with its links.
func removeNamespace(name string) error {
	pids, err := exec.Command("ip", "netns", "pids", name).Output()
	if err != nil {
		return fmt.Errorf("list the processes in namespace %s: %w", name, err)
	}
	for _, field := range strings.Fields(string(pids)) {
		if pid, err := strconv.Atoi(field); err == nil && pid != os.Getpid() {
			syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
		return fmt.Errorf("delete namespace %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
