// Package tools builds the lab's programs: those of others, pinned in the modules below test/tools, and the project's own.
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
	"path"
	"path/filepath"
	"regexp"
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
	test    bool   // a test program: go test -c
	rare    bool   // only make test-all runs it
	patched *patched
}

// pinned programs, by their file names in the cache.
var pinned = map[string]program{
	"etcd":                    {module: "kubernetes", pkg: "go.etcd.io/etcd/server/v3"},
	"kube-apiserver":          {module: "kubernetes", pkg: kubernetes + "cmd/kube-apiserver"},
	"kube-controller-manager": {module: "kubernetes", pkg: kubernetes + "cmd/kube-controller-manager"},
	"kube-scheduler":          {module: "kubernetes", pkg: kubernetes + "cmd/kube-scheduler"},
	"kubelet":                 {module: "kubernetes", pkg: kubernetes + "cmd/kubelet"},
	"kube-proxy":              {module: "kubernetes", pkg: kubernetes + "cmd/kube-proxy"},
	"kubectl":                 {module: "kubernetes", pkg: kubernetes + "cmd/kubectl"},
	"agnhost":                 {module: "kubernetes", pkg: kubernetes + "test/images/agnhost", rare: true},
	"e2e.test":                {module: "kubernetes", pkg: "./e2e", test: true, rare: true, patched: &patchedTests},
	"ginkgo":                  {module: "kubernetes", pkg: "github.com/onsi/ginkgo/v2/ginkgo", rare: true},
	"coredns":                 {module: "coredns", pkg: "."},
	"containerd":              {module: "containerd", pkg: containerd + "cmd/containerd"},
	"containerd-shim-runc-v2": {module: "containerd", pkg: containerd + "cmd/containerd-shim-runc-v2"},
	"ctr":                     {module: "containerd", pkg: containerd + "cmd/ctr"},
	"metallb-controller":      {module: "metallb", pkg: metallb + "/controller", rare: true},
	"metallb-speaker":         {module: "metallb", pkg: metallb + "/speaker", rare: true},
	"helm3":                   {module: "helm3", pkg: "helm.sh/helm/v3/cmd/helm", rare: true},
	"helm4":                   {module: "helm4", pkg: "helm.sh/helm/v4/cmd/helm"},
}

const (
	kubernetes       = "k8s.io/kubernetes/"
	componentVersion = "k8s.io/component-base/version"
	metallb          = "go.universe.tf/metallb"
	containerd       = "github.com/containerd/containerd/v2/"
)

// ldflags of a module's programs, in addition to -s -w: the versions as set by upstream's own builds, which clients,
// charts and kubelets read.
var ldflags = map[string]string{
	"kubernetes": "-X " + componentVersion + ".gitVersion=v1.36.3 -X " + componentVersion + ".gitMajor=1 -X " + componentVersion + ".gitMinor=36",
	"containerd": "-X " + containerd + "version.Version=2.1.8",
	"helm3":      "-X helm.sh/helm/v3/internal/version.version=v3.22.0 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
	"helm4":      "-X helm.sh/helm/v4/internal/version.version=v4.3.1",
}

// file returns the name that go gives to the program.
func (p program) file() string {
	if p.pkg == "." {
		return p.module
	}
	dir, name := path.Split(p.pkg)
	if majorVersion.MatchString(name) {
		name = path.Base(dir)
	}
	return name
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// Programs of every lab: those of others, the lab's own, and the product's.
var (
	ControlPlane    = []string{"etcd", "kube-apiserver", "kube-controller-manager"}
	LabPrograms     = []string{"test/lab/cmd/labpod", "test/lab/cmd/labkubelet"}
	ProductPrograms = []string{"cmd/ironlb-ccm", "cmd/ironlb-speaker"}
)

// Tested returns the names of the pinned programs that make test runs, sorted; with all set, those of make test-all.
func Tested(all bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(pinned)), func(name string) bool { return pinned[name].rare && !all })
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
	return b.Programs(ctx, names, nil)
}

// Own builds the project's own programs, static, each into a file named after its folder. Paths are relative to the
// module: "cmd/ironlb-ccm".
func (b *Build) Own(ctx context.Context, paths ...string) error { return b.Programs(ctx, nil, paths) }

// Programs builds those named programs that are missing or outdated, and the project's own ones: one run of go for all
// programs of a module, which share packages.
func (b *Build) Programs(ctx context.Context, names, own []string) error {
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	jobs, err := b.jobs(names)
	if err != nil {
		return err
	}
	for _, path := range own {
		if !exists(filepath.Join(b.Root, path)) {
			return fmt.Errorf("build %s: %s has no such folder", path, b.Root)
		}
	}
	count := progress{all: len(own)}
	for _, j := range jobs {
		count.all += len(j.names)
	}
	for _, j := range jobs {
		if err := b.pinned(ctx, count, j); err != nil {
			return err
		}
		count.done += len(j.names)
	}
	if len(own) == 0 {
		return nil
	}
	return b.own(ctx, count, own)
}

// job is a run of go that builds pinned programs of one module.
type job struct {
	names  []string
	stamps []string
	program
}

// jobs returns the runs that build the named programs, without those that are up to date.
func (b *Build) jobs(names []string) (jobs []job, err error) {
	for _, name := range names {
		prog, ok := pinned[name]
		if !ok {
			return nil, fmt.Errorf("build %s: not a pinned program", name)
		}
		want, err := b.stamp(prog)
		if err != nil {
			return nil, err
		}
		if have, err := os.ReadFile(b.stampFile(name)); err == nil && string(have) == want && exists(b.Path(name)) {
			continue
		}
		i := slices.IndexFunc(jobs, func(j job) bool { return j.module == prog.module && !j.test && !prog.test })
		if i < 0 {
			i, jobs = len(jobs), append(jobs, job{program: prog})
		}
		jobs[i].names, jobs[i].stamps = append(jobs[i].names, name), append(jobs[i].stamps, want)
	}
	return jobs, nil
}

// pinned builds pinned programs beside their files, and then replaces these.
func (b *Build) pinned(ctx context.Context, count progress, j job) error {
	dir, err := os.MkdirTemp(b.Dir, ".build-")
	if err != nil {
		return fmt.Errorf("make the folder for programs: %w", err)
	}
	defer os.RemoveAll(dir)
	fmt.Fprintf(b.Progress, "building %d of %d programs, first time only: %s\n", len(j.names), count.all, strings.Join(j.names, ", "))
	run := run{names: j.names, dir: b.module(j.program), out: dir + "/", ldflags: ldflags[j.module], command: []string{"build", "-v"}}
	for _, name := range j.names {
		run.files, run.pkgs = append(run.files, pinned[name].file()), append(run.pkgs, pinned[name].pkg)
	}
	if j.test {
		run.command, run.out, run.files = []string{"test", "-c", "-v", "-vet=off"}, filepath.Join(dir, j.names[0]), j.names
	}
	if j.patched != nil {
		edits, err := os.MkdirTemp("", "ironlb-overlay-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(edits)
		overlay, err := j.patched.overlay(run.dir, edits)
		if err != nil {
			return err
		}
		run.command = append(run.command, "-overlay="+overlay)
	}
	if err := b.goBuild(ctx, count, run); err != nil {
		return err
	}
	for i, name := range j.names {
		err := os.Rename(filepath.Join(dir, run.files[i]), b.Path(name))
		if err == nil {
			err = os.WriteFile(b.stampFile(name), []byte(j.stamps[i]), 0o644)
		}
		if err != nil {
			return fmt.Errorf("keep the built %s: %w", name, err)
		}
	}
	return nil
}

func (b *Build) own(ctx context.Context, count progress, paths []string) error {
	run := run{dir: b.Root, out: b.Dir + "/", command: []string{"build", "-v", "-tags=" + Tags}}
	for _, path := range paths {
		run.names, run.pkgs = append(run.names, filepath.Base(path)), append(run.pkgs, "./"+path)
	}
	if err := b.goBuild(ctx, count, run); err != nil {
		return err
	}
	return b.link(run.names)
}

func (b *Build) module(p program) string { return filepath.Join(b.Root, "test", "tools", p.module) }

// MetalLB returns the folder of MetalLB's sources, with its manifests, at the version of its built programs.
func (b *Build) MetalLB() (string, error) {
	return download(b.module(pinned["metallb-speaker"]), metallb)
}

// Images builds images from specs for this machine's processor, and returns their archives. Programs in the folder bin
// are used instead of being built. References are by the name of an image; an image without one keeps that of its spec.
func (b *Build) Images(ctx context.Context, bin string, references map[string]string, specs ...string) ([]string, error) {
	unlock, err := b.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	tool := run{names: []string{"images"}, dir: filepath.Join(b.Root, imageTool), out: filepath.Join(b.Dir, "images"), command: []string{"build", "-v"}, pkgs: []string{"."}}
	if err := b.goBuild(ctx, progress{all: 1}, tool); err != nil {
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
	io.WriteString(h, ldflags[p.module])
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
