package reach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/speaker/view"
)

// maxRecord limits the size of the record's file.
const maxRecord = 4 << 20

// record is what a speaker stores for its successor on this node: which nodes are unreachable, and which of their
// targets had answered before.
type record struct {
	// Boot is the kernel's boot_id: after a reboot the record is void.
	Boot        string              `json:"boot"`
	Unreachable map[string][]Target `json:"unreachable"`
}

// Record returns the unreachable nodes, with those of their targets that had answered before. A node that answers again
// is not included, although it may still be damped.
func (c *Core) Record() map[string][]Target {
	out := map[string][]Target{}
	maps.Copy(out, c.restored)
	for _, n := range c.nodes {
		if n.unreachable == nil || n.unreachable.Damped {
			continue
		}
		for _, t := range n.targets {
			if t.works {
				out[n.name] = append(out[n.name], t.Target)
			}
		}
	}
	return out
}

// Restore makes the nodes unreachable that a previous process recorded, until they are received or one of these targets
// answers. It must be called before any other method.
func (c *Core) Restore(now time.Time, unreachable map[string][]Target) {
	c.restored, c.state = maps.Clone(unreachable), newState()
	for name, targets := range unreachable {
		c.state.Unreachable[name] = restoredNode(now, targets)
	}
}

func restoredNode(now time.Time, targets []Target) view.UnreachableNode {
	u := view.UnreachableNode{Since: now}
	for _, t := range targets {
		u.Silent = append(u.Silent, t.By)
	}
	slices.Sort(u.Silent)
	u.Silent = slices.Compact(u.Silent)
	return u
}

// restore applies the record to a node that is set for the first time: the targets that had answered are probed. A node
// with other addresses is reachable.
func (c *Core) restore(n *node) {
	before := c.restored[n.name]
	if n.received || !slices.ContainsFunc(n.targets, func(t *target) bool { return slices.Contains(before, t.Target) }) {
		return
	}
	u := c.state.Unreachable[n.name]
	n.known, n.lost, n.unreachable = true, u.Since, &u
	for _, t := range n.targets {
		t.works = slices.Contains(before, t.Target)
	}
}

// readRecord returns the nodes that a previous process recorded since the machine booted, or none if there is no such
// file.
func readRecord(path, boot string) (map[string][]Target, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxRecord+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	out, err := parseRecord(text, boot)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

func parseRecord(text []byte, boot string) (map[string][]Target, error) {
	if len(text) > maxRecord {
		return nil, fmt.Errorf("more than %d bytes", maxRecord)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.Boot != boot {
		return nil, nil
	}
	for name, targets := range r.Unreachable {
		if len(targets) == 0 {
			return nil, fmt.Errorf("node %q: no target", name)
		}
		for _, t := range targets {
			if t.By != view.WitnessEcho && t.By != view.WitnessNeighbor {
				return nil, fmt.Errorf("node %q: by: %q is neither %s nor %s", name, t.By, view.WitnessEcho, view.WitnessNeighbor)
			}
			if !t.Addr.IsValid() {
				return nil, fmt.Errorf("node %q: no address", name)
			}
		}
	}
	return r.Unreachable, nil
}

// writeRecord writes these nodes to the file, or removes the file if there are none.
func writeRecord(path, boot string, unreachable map[string][]Target) error {
	if len(unreachable) == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(record{Boot: boot, Unreachable: unreachable})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	next := path + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path) // without fsync: after a reboot the record is void
}

// bootID returns the boot ID of the running kernel.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// restore initializes the Core with the nodes that a previous process recorded.
func (p *Prober) restore() {
	var nodes map[string][]Target
	boot, err := bootID()
	if err == nil {
		if nodes, err = readRecord(p.options.Record, boot); len(nodes) > 0 {
			p.core.Restore(time.Now(), nodes)
			p.options.Log.Info("restored unreachable nodes",
				"nodes", slices.Sorted(maps.Keys(nodes)))
		}
	}
	p.record.Store(&nodes)
	if err != nil {
		p.options.Log.Warn("cannot use the record of unreachable nodes", "error", err)
	}
	p.changed <- struct{}{} // to replace the content of the file
}

// recordRetry is the pause before a failed write of the record is retried.
const recordRetry = 5 * time.Second

// keepRecord writes the record at start and after each change, until the context ends. It runs alongside Run, which
// must not wait for a disk.
func (p *Prober) keepRecord(ctx context.Context) {
	failed := ""
	var retry <-chan time.Time
	for ended := false; !ended; {
		select {
		case <-p.changed:
		case <-retry:
		case <-ctx.Done():
			ended = true
		}
		boot, err := bootID()
		if err == nil {
			err = writeRecord(p.options.Record, boot, *p.record.Load())
		}
		if err == nil {
			failed = ""
			continue
		}
		if err.Error() != failed {
			failed = err.Error()
			p.options.Log.Warn("cannot record the unreachable nodes for the next speaker (stateDir), retrying", "error", err)
		}
		retry = time.After(recordRetry)
	}
}
