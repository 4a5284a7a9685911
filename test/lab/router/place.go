// Package router runs BIRD 2 and FRR as a network's routers in network namespaces, without systemd. It writes their
// configuration, and reads sessions, tables and the time of each change in the kernel.
//
// Every router has a mount namespace with its own tmpfs, so several run side by side, and nothing is left after their
// processes have ended. Stop kills these, and the kernel does when this process ends.
package router

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// private is the mount point of a router's own tmpfs: an empty folder of every Debian.
const private = "/mnt"

const patience = 30 * time.Second

// Place is where a router runs.
type Place struct {
	Host host.Host
	// Namespace is the file of its network namespace in the host's kernel ("/run/netns/NAME").
	Namespace string
	// Logs is a folder of this machine for the logs.
	Logs string
}

// In returns the place of a test's namespace.
func In(t testing.TB, space *netspace.Space) Place {
	return Place{host.Native{}, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(space.NS)), t.TempDir()}
}

// Router is the common interface of BIRD and FRR.
type Router interface {
	// Configure replaces the configuration; unchanged sessions stay up.
	Configure(ctx context.Context, c Config) error
	// Sessions returns the sessions by the neighbors' names.
	Sessions(ctx context.Context) (map[string]Session, error)
	// RIB returns the paths of a prefix learned by BGP, one for each neighbor that advertised it.
	RIB(ctx context.Context, prefix string) ([]Path, error)
	// BFD returns the BFD sessions by the neighbor's address.
	BFD(ctx context.Context) (map[string]BFDSession, error)
	// Routes returns the router's routes in the kernel, of one family (4 or 6).
	Routes(ctx context.Context, family int) ([]Route, error)
	// Ask runs a command of birdc or vtysh.
	Ask(ctx context.Context, command string) (string, error)
	// Log returns the end of the router's log.
	Log() string
	// Stop ends the router.
	Stop() error
}

// Kinds are the routers to run a test with.
var Kinds = map[string]func(context.Context, Place, Config) (Router, error){
	"bird": func(ctx context.Context, p Place, c Config) (Router, error) { return StartBIRD(ctx, p, c) },
	"frr":  func(ctx context.Context, p Place, c Config) (Router, error) { return StartFRR(ctx, p, c) },
}

// run runs a command in the place's network namespace.
func (p Place) run(ctx context.Context, argv ...string) (string, error) {
	out, err := host.Run(ctx, p.Host, append([]string{"nsenter", "--net=" + p.Namespace, "--"}, argv...)...)
	return string(out), err
}

// start starts the first process of a router, in its own mount namespace. The script ends with the exec of the program.
func (p Place) start(ctx context.Context, name, stdin, script string) (*process.Process, error) {
	return process.Start(ctx, p.Host, name, filepath.Join(p.Logs, name+".log"), host.Cmd{
		Argv: []string{"nsenter", "--net=" + p.Namespace, "--", "unshare", "--mount", "--propagation", "private", "--",
			"sh", "-ec", "mount -t tmpfs tmpfs " + private + "\n" + script},
		Stdin: strings.NewReader(stdin),
	})
}

// inside returns the command that runs a script in both namespaces of a router's process.
func (p Place) inside(first *process.Process, script string) []string {
	return []string{"nsenter", "--net=" + p.Namespace, "--mount", "--target", strconv.Itoa(first.Pid()), "--", "sh", "-ec", script}
}

// do runs a script in both namespaces.
func (p Place) do(ctx context.Context, first *process.Process, stdin, script string) (string, error) {
	if !first.Running() {
		return "", errors.Join(fmt.Errorf("%s does not run", first.Name), first.Err())
	}
	out, err := host.Output(ctx, p.Host, host.Cmd{Argv: p.inside(first, script), Stdin: strings.NewReader(stdin)})
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", first.Name, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// until waits until ok, or fails when the router's process ends.
func until(ctx context.Context, p *process.Process, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-p.Done():
			return p.Err()
		case <-ctx.Done():
			return fmt.Errorf("%s: %s: %w; its last lines:\n%s", p.Name, what, ctx.Err(), process.Tail(p.Log, 15))
		}
	}
	return nil
}
