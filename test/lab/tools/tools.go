// Package tools builds the lab's programs: the real control plane, pinned in module test/tools, and the project's own.
// They are kept in the user's cache folder, so only the first build on a machine takes minutes.
package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Tags are the build tags of the project's own programs, here and in the Makefile; see docs/design/dependencies.md.
const Tags = "grpcnotrace"

// program describes the build of a pinned program.
type program struct {
	module  string // folder of the module that pins it, below test/tools
	pkg     string // package path
	ldflags string // in addition to -s -w
	test    bool   // a test program: go test -c
	patched *patched
}

// pinned programs, by their file names in the cache.
var pinned = map[string]program{
	"etcd":                    {pkg: "go.etcd.io/etcd/server/v3"},
	"kube-apiserver":          {pkg: kubernetes + "cmd/kube-apiserver", ldflags: kubernetesVersion},
	"kube-controller-manager": {pkg: kubernetes + "cmd/kube-controller-manager", ldflags: kubernetesVersion},
	"kube-scheduler":          {pkg: kubernetes + "cmd/kube-scheduler", ldflags: kubernetesVersion},
	"kubelet":                 {pkg: kubernetes + "cmd/kubelet", ldflags: kubernetesVersion},
	"kube-proxy":              {pkg: kubernetes + "cmd/kube-proxy", ldflags: kubernetesVersion},
	"kubectl":                 {pkg: kubernetes + "cmd/kubectl", ldflags: kubernetesVersion},
	"agnhost":                 {pkg: kubernetes + "test/images/agnhost", ldflags: kubernetesVersion},
	"e2e.test":                {pkg: "./e2e", ldflags: kubernetesVersion, test: true, patched: &patchedTests},
	"ginkgo":                  {pkg: "github.com/onsi/ginkgo/v2/ginkgo"},
	"coredns":                 {module: "coredns", pkg: "."},
	"containerd":              {module: "containerd", pkg: containerd + "cmd/containerd", ldflags: containerdVersion},
	"containerd-shim-runc-v2": {module: "containerd", pkg: containerd + "cmd/containerd-shim-runc-v2", ldflags: containerdVersion},
	"ctr":                     {module: "containerd", pkg: containerd + "cmd/ctr", ldflags: containerdVersion},
	"metallb-controller":      {module: "metallb", pkg: metallb + "/controller"},
	"metallb-speaker":         {module: "metallb", pkg: metallb + "/speaker"},
	"helm3":                   {module: "helm3", pkg: "helm.sh/helm/v3/cmd/helm", ldflags: "-X helm.sh/helm/v3/internal/version.version=v3.22.0 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36"},
	"helm4":                   {module: "helm4", pkg: "helm.sh/helm/v4/cmd/helm", ldflags: "-X helm.sh/helm/v4/internal/version.version=v4.3.1"},
}

const (
	kubernetes = "k8s.io/kubernetes/"
	// The version as set by Kubernetes' own build: clients and charts read it from the API server.
	kubernetesVersion = "-X " + componentVersion + ".gitVersion=v1.36.3 -X " + componentVersion + ".gitMajor=1 -X " + componentVersion + ".gitMinor=36"
	componentVersion  = "k8s.io/component-base/version"

	metallb = "go.universe.tf/metallb"

	containerd = "github.com/containerd/containerd/v2/"
	// The version as set by containerd's own build: the kubelet reads it.
	containerdVersion = "-X " + containerd + "version.Version=2.1.8"
)

// Tested returns the names of the pinned programs that tests run, sorted: all but MetalLB's, which benchmarks run.
func Tested() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(pinned)), func(name string) bool { return pinned[name].module == "metallb" })
}

// Build builds programs and reports long steps.
type Build struct {
	Root     string    // the module's folder
	Dir      string    // output folder
	Private  string    // folder for links to the project's own programs, safe from another checkout's build; empty: no links
	Progress io.Writer // one line per long step; nil: silent
}

// New returns a Build for the module that contains the working directory, into the user's cache folder.
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

// Path of a built program.
func (b *Build) Path(name string) string {
	if _, ok := pinned[name]; !ok && b.Private != "" {
		return filepath.Join(b.Private, name)
	}
	return filepath.Join(b.Dir, name)
}

// Pinned builds those named programs that are missing or outdated.
func (b *Build) Pinned(ctx context.Context, names ...string) error {
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, name := range names {
		prog, ok := pinned[name]
		if !ok {
			return fmt.Errorf("build %s: not a pinned program", name)
		}
		want, err := b.stamp(prog)
		if err != nil {
			return err
		}
		if have, err := os.ReadFile(b.stampFile(name)); err == nil && string(have) == want && exists(b.Path(name)) {
			continue
		}
		what := "building " + name + ", first time only"
		if err := b.pinned(ctx, what, b.Path(name), prog); err != nil {
			return err
		}
		if err := os.WriteFile(b.stampFile(name), []byte(want), 0o644); err != nil {
			return fmt.Errorf("record that %s is built: %w", name, err)
		}
	}
	return nil
}

// pinned builds a pinned program into the file out.
func (b *Build) pinned(ctx context.Context, what, out string, p program) error {
	command := p.command()
	if p.patched != nil {
		dir, err := os.MkdirTemp("", "ironlb-overlay-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		overlay, err := p.patched.overlay(b.module(p), dir)
		if err != nil {
			return err
		}
		command = append(command, "-overlay="+overlay)
	}
	return b.goBuild(ctx, what, b.module(p), out, p.ldflags, command, p.pkg)
}

// command of go that builds the program.
func (p program) command() []string {
	if p.test {
		return []string{"test", "-c", "-vet=off"}
	}
	return []string{"build"}
}

func (b *Build) module(p program) string { return filepath.Join(b.Root, "test", "tools", p.module) }

// MetalLB returns the folder of MetalLB's sources, with its manifests, at the version of its built programs.
func (b *Build) MetalLB() (string, error) {
	return download(b.module(pinned["metallb-speaker"]), metallb)
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
	if err := b.goBuild(ctx, "building "+strings.Join(names, ", "), b.Root, b.Dir+"/", "", []string{"build", "-tags=" + Tags}, pkgs...); err != nil {
		return err
	}
	return b.link(names)
}

// Images builds images from specs for this machine's processor, and returns their archives. Programs in the folder bin
// are used instead of being built. References are by the name of an image; an image without one keeps that of its spec.
func (b *Build) Images(ctx context.Context, bin string, references map[string]string, specs ...string) ([]string, error) {
	unlock, err := b.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := b.goBuild(ctx, "building the image tool", filepath.Join(b.Root, imageTool), filepath.Join(b.Dir, "images"), "", []string{"build"}, "."); err != nil {
		return nil, err
	}
	// Each checkout has its own folder: their project images have the same names.
	checkout := sha256.Sum256([]byte(b.Root))
	out := filepath.Join(filepath.Dir(b.Dir), "images", hex.EncodeToString(checkout[:4]))
	args := []string{"build", "-platform", "linux/" + runtime.GOARCH, "-out", out, "-layout=false", "-bin", bin}
	for _, name := range slices.Sorted(maps.Keys(references)) {
		args = append(args, "-ref", name+"="+references[name])
	}
	var archives []string
	for _, spec := range specs {
		args = append(args, filepath.Join(b.Root, spec))
		archives = append(archives, filepath.Join(out, strings.TrimSuffix(filepath.Base(spec), ".yaml")+"-linux-"+runtime.GOARCH+".tar"))
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.Dir, "images"), args...)
	cmd.Dir, cmd.Stdout = b.Root, io.Discard
	var errors bytes.Buffer
	cmd.Stderr = io.MultiWriter(&errors, b.Progress)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("build images: %w: %s", err, bytes.TrimSpace(errors.Bytes()))
	}
	return archives, nil
}

// imageTool is the folder of the module that builds images.
const imageTool = "deploy/images"

// link keeps the built programs where no other build replaces them.
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

// goBuild runs a build command of go in dir and reports progress every ten seconds.
func (b *Build) goBuild(ctx context.Context, what, dir, out, ldflags string, command []string, pkgs ...string) error {
	args := slices.Concat(command, []string{"-trimpath", strings.TrimSpace("-ldflags=-s -w " + ldflags), "-o", out}, pkgs)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output

	start, done := time.Now(), make(chan struct{})
	reported := make(chan struct{})
	go func() {
		defer close(reported)
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
	<-reported
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("%s: go %s: %w\n%s", what, strings.Join(args, " "), err, bytes.TrimSpace(output.Bytes()))
	}
	return nil
}

// stamp identifies the sources, the compiler and the flags of a program.
func (b *Build) stamp(p program) (string, error) {
	h := sha256.New()
	files := []string{"go.mod", "go.sum"}
	if p.pkg == "." {
		files = append(files, "main.go")
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(b.module(p), f))
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
	io.WriteString(h, p.ldflags)
	if p.patched != nil {
		fmt.Fprintf(h, "%+v", *p.patched)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (b *Build) stampFile(name string) string { return filepath.Join(b.Dir, "."+name+".stamp") }

// lock prevents two builds in one folder. The kernel releases it when the process ends.
func (b *Build) lock(ctx context.Context) (func(), error) {
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder for programs: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(b.Dir, ".lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the folder for programs: %w", err)
	}
	for reported := false; ; {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !reported {
			fmt.Fprintln(b.Progress, "waiting for another build of the lab's programs")
			reported = true
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
