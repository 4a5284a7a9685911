package reach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironlb/ironlb/speaker/plan"
)

// recordMost bounds the size of a record's file: 10,000 nodes need some 1.5 MiB.
const recordMost = 4 << 20

// record is what a speaker keeps for the next one on this node: which nodes are unreachable. There is no file while
// none is.
type record struct {
	// Boot is the kernel's boot_id: after a boot nothing of it counts.
	Boot        string                  `json:"boot"`
	Unreachable map[string]recordedNode `json:"unreachable"`
}

type recordedNode struct {
	Since   time.Time      `json:"since"`
	Silent  []plan.Witness `json:"silent"`
	Gateway netip.Addr     `json:"gateway,omitzero"`
}

// Restore makes the nodes unreachable that were so to an earlier process, until they are received or answer. Call it
// before any other method.
func (c *Core) Restore(unreachable map[string]plan.UnreachableNode) {
	c.restored = maps.Clone(unreachable)
	c.state = newState()
	maps.Copy(c.state.Unreachable, c.restored)
}

// restore takes over what an earlier process knew of a node that this one is given for the first time: the witnesses
// that had answered before it was unreachable are asked.
func (c *Core) restore(n *node) {
	u, is := c.restored[n.name]
	if !is {
		return
	}
	n.known, n.lost, n.unreachable = true, u.Since, &u
	for _, t := range n.targets {
		t.works = slices.Contains(u.Silent, t.By)
	}
}

// readRecord returns the nodes that were unreachable to an earlier process since the machine booted, none where there
// is no such file.
func readRecord(path, boot string, now time.Time) (map[string]plan.UnreachableNode, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, recordMost+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	out, err := parseRecord(text, boot, now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

func parseRecord(text []byte, boot string, now time.Time) (map[string]plan.UnreachableNode, error) {
	if len(text) > recordMost {
		return nil, fmt.Errorf("more than %d bytes", recordMost)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.Boot != boot {
		return nil, nil
	}
	out := make(map[string]plan.UnreachableNode, len(r.Unreachable))
	for name, n := range r.Unreachable {
		for _, w := range n.Silent {
			if w != plan.WitnessEcho && w != plan.WitnessNeighbor {
				return nil, fmt.Errorf("node %q: silent: %q is neither %s nor %s", name, w, plan.WitnessEcho, plan.WitnessNeighbor)
			}
		}
		if len(n.Silent) == 0 {
			return nil, fmt.Errorf("node %q: silent: no witness", name)
		}
		if n.Since.IsZero() || n.Since.After(now) { // the clock was set back
			n.Since = now
		}
		out[name] = plan.UnreachableNode{Since: n.Since, Silent: n.Silent, Gateway: n.Gateway}
	}
	return out, nil
}

// writeRecord makes the file hold these nodes, or removes it where there is none.
func writeRecord(path, boot string, unreachable map[string]plan.UnreachableNode) error {
	if len(unreachable) == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	r := record{Boot: boot, Unreachable: make(map[string]recordedNode, len(unreachable))}
	for name, u := range unreachable {
		r.Unreachable[name] = recordedNode{Since: u.Since, Silent: u.Silent, Gateway: u.Gateway}
	}
	text, err := json.Marshal(r)
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
	return os.Rename(next, path) // without fsync: after a boot it does not count
}

// bootID is that of the running kernel.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// restore has the Core begin with what an earlier process recorded.
func (p *Prober) restore() {
	boot, err := bootID()
	if err == nil {
		var nodes map[string]plan.UnreachableNode
		if nodes, err = readRecord(p.options.Record, boot, time.Now()); len(nodes) > 0 {
			p.core.Restore(nodes)
			p.options.Log.Info("nodes were unreachable to the speaker before this one; they are until they answer",
				"nodes", slices.Sorted(maps.Keys(nodes)))
		}
	}
	if err != nil {
		p.options.Log.Warn("cannot use the record of unreachable nodes", "error", err)
	}
}

// keepRecord writes the record after each change, until the context ends: beside Run, which no disk may hold up.
func (p *Prober) keepRecord(ctx context.Context) {
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		}
		boot, err := bootID()
		if err == nil {
			err = writeRecord(p.options.Record, boot, p.State().Unreachable)
		}
		if err != nil && err.Error() != failed {
			failed = err.Error()
			p.options.Log.Warn("cannot record the unreachable nodes for the next speaker (stateDir)", "error", err)
		}
	}
}
