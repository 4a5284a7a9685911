package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/ironlb/ironlb/test/lab/connections"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// Connections is a client of package connections that runs on a machine.
type Connections struct {
	p   *process.Process
	out *lines

	mu    sync.Mutex
	read  int // lines of out
	lives map[int]connections.Life
	done  *connections.Done
}

// StartConnections starts a client on the machine. Its Interface is that of the machine's link.
func (m *Machine) StartConnections(ctx context.Context, c *connections.Client) (*Connections, error) {
	argv := []string{m.c.build.Path("labpod"), "connections", "-kept", strconv.Itoa(c.Kept), "-every", c.Every.String(),
		"-open", c.Open.String(), "-lines", strconv.Itoa(c.Lines), "-bound", c.Bound.String(), "-port", strconv.Itoa(c.Port),
		"-interface", "eth0"}
	for _, t := range c.Targets {
		argv = append(argv, t.String())
	}
	k := &Connections{out: newLines(), lives: map[int]connections.Life{}}
	var err error
	k.p, err = m.Start(ctx, "connections", host.Cmd{Argv: argv, Stdout: k.out})
	return k, err
}

// Lives returns the connections by number: those that have ended, and those answered at least once.
func (k *Connections) Lives() (map[int]connections.Life, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.out.All()
	for _, line := range all[k.read:] {
		var e connections.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("connections: event %q: %w", line, err)
		}
		if e.Life != nil {
			k.lives[e.Life.N] = *e.Life
		}
		if e.Done != nil {
			k.done = e.Done
		}
	}
	k.read = len(all)
	return k.lives, nil
}

// Stop ends the client when each line was answered or is overdue, and returns all connections, in the order opened.
func (k *Connections) Stop() ([]connections.Life, connections.Done, error) {
	if err := k.p.Stop(2 * stopGrace); err != nil {
		return nil, connections.Done{}, err
	}
	lives, err := k.Lives()
	if err == nil && k.done == nil {
		err = errors.Join(errors.New("connections: the client did not end by itself"), k.p.Wait())
	}
	if err != nil {
		return nil, connections.Done{}, err
	}
	var all []connections.Life
	for n := 1; len(all) < len(lives); n++ {
		if l, there := lives[n]; there {
			all = append(all, l)
		}
	}
	return all, *k.done, nil
}

// Kill ends the client without a result.
func (k *Connections) Kill() error { return k.p.Kill() }

// Drop removes the results of an ended client, and their file.
func (k *Connections) Drop() error {
	k.out.Drop()
	return os.Remove(k.p.Log)
}
