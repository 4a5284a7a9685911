// Package tools builds the programs that the lab runs: the real control plane,
// pinned in module test/tools, and the project's own. They are kept in the
// user's cache folder, so only the first build on a machine takes minutes.
package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Tags that the project's own programs are built with, here and in the Makefile: docs/design/dependencies.md says why.
const Tags = "grpcnotrace"

// Package paths of the pinned programs, by the names they are kept under.
var pinned = map[string]string{
	"etcd":                    "go.etcd.io/etcd/server/v3",
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-proxy":              "k8s.io/kubernetes/cmd/kube-proxy",
	"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
}

// Build builds programs and says on a writer what takes long.
type Build struct {
	Root     string    // the module's folder
	Dir      string    // where the programs go
	Private  string    // where links to the project's own go, so that another checkout's build does not replace them; empty: none
	Progress io.Writer // one line per long step; nil: silent
}

// New returns a Build for the module that the working directory lies in, into
// the user's cache folder.
func New(ctx context.Context, progress io.Writer) (*Build, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	root := strings.TrimSpace(string(out))
	if err != nil || root == "" {
		return nil, fmt.Errorf("find the module's folder: %w; run this inside a checkout, with go on PATH", stderrOf(err))
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the cache folder: %w; set HOME", err)
	}
	if progress == nil {
		progress = io.Discard
	}
	return &Build{Root: root, Dir: filepath.Join(cache, "ironlb", "bin"), Progress: progress}, nil
}

// Path of a program that was built.
func (b *Build) Path(name string) string {
	if _, ok := pinned[name]; !ok && b.Private != "" {
		return filepath.Join(b.Private, name)
	}
	return filepath.Join(b.Dir, name)
}

// Pinned builds the named programs of module test/tools that are missing or
// out of date.
func (b *Build) Pinned(ctx context.Context, names ...string) error {
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	want, err := b.stamp()
	if err != nil {
		return err
	}
	for _, name := range names {
		pkg, ok := pinned[name]
		if !ok {
			return fmt.Errorf("build %s: not a pinned program", name)
		}
		if have, err := os.ReadFile(b.stampFile(name)); err == nil && string(have) == want && exists(b.Path(name)) {
			continue
		}
		err := b.goBuild(ctx, "building "+name+", first time only", filepath.Join(b.Root, "test", "tools"), b.Path(name), pkg)
		if err != nil {
			return err
		}
		if err := os.WriteFile(b.stampFile(name), []byte(want), 0o644); err != nil {
			return fmt.Errorf("note that %s is built: %w", name, err)
		}
	}
	return nil
}

// Own builds the project's own programs, static, each into a file named after
// its folder. Paths are relative to the module: "cmd/ironlb-ccm".
func (b *Build) Own(ctx context.Context, paths ...string) error {
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if len(paths) == 0 {
		return nil
	}
	var pkgs, names []string
	for _, p := range paths {
		if !exists(filepath.Join(b.Root, p)) {
			return fmt.Errorf("build %s: %s has no such folder", p, b.Root)
		}
		pkgs, names = append(pkgs, "./"+p), append(names, filepath.Base(p))
	}
	if err := b.goBuild(ctx, "building "+strings.Join(names, ", "), b.Root, b.Dir+"/", append([]string{"-tags=" + Tags}, pkgs...)...); err != nil {
		return err
	}
	return b.link(names)
}

// link keeps what was just built where no other build replaces it.
func (b *Build) link(names []string) error {
	if b.Private == "" {
		return nil
	}
	if err := os.MkdirAll(b.Private, 0o755); err != nil {
		return fmt.Errorf("make the folder for the project's own programs: %w", err)
	}
	for _, name := range names {
		if err := os.Link(filepath.Join(b.Dir, name), b.Path(name)); err != nil {
			return fmt.Errorf("keep the built %s: %w", name, err)
		}
	}
	return nil
}

// goBuild runs go build in dir and tells every ten seconds that it still does.
// The rest are more flags and the packages.
func (b *Build) goBuild(ctx context.Context, what, dir, out string, rest ...string) error {
	args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", out}, rest...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output

	start, done := time.Now(), make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(b.Progress, "%s: %s\n", what, time.Since(start).Round(time.Second))
			case <-done:
				return
			}
		}
	}()
	err := cmd.Run()
	close(done)
	<-told
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("%s: go %s: %w\n%s", what, strings.Join(args, " "), err, bytes.TrimSpace(output.Bytes()))
	}
	return nil
}

// stamp tells one set of sources and compiler from another.
func (b *Build) stamp() (string, error) {
	h := sha256.New()
	for _, f := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(b.Root, "test", "tools", f))
		if err != nil {
			return "", fmt.Errorf("read what is pinned: %w", err)
		}
		h.Write(data)
	}
	version, err := exec.Command("go", "version").Output()
	if err != nil {
		return "", fmt.Errorf("ask go for its version: %w", stderrOf(err))
	}
	h.Write(version)
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (b *Build) stampFile(name string) string { return filepath.Join(b.Dir, "."+name+".stamp") }

// lock keeps two builds out of one folder. The kernel releases it when the
// process ends.
func (b *Build) lock(ctx context.Context) (func(), error) {
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder for programs: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(b.Dir, ".lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the folder for programs: %w", err)
	}
	for told := false; ; {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !told {
			fmt.Fprintln(b.Progress, "waiting for another build of the lab's programs")
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func stderrOf(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err == nil {
		return errors.New("no module")
	}
	return err
}
