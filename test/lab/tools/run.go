package tools

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// run is one run of go that builds programs.
type run struct {
	names   []string // of the programs
	files   []string // their names in the folder out, where each appears when it is linked; nil: they replace older ones
	dir     string   // of the module
	out     string
	ldflags string   // in addition to -s -w
	command []string // of go
	pkgs    []string
}

// progress is a number of programs, and how many of them are built.
type progress struct{ done, all int }

// goBuild runs go, and prints a line every ten seconds, and at the end unless there was nothing to compile.
func (b *Build) goBuild(ctx context.Context, count progress, r run) error {
	args := slices.Concat(r.command, []string{"-trimpath", strings.TrimSpace("-ldflags=-s -w " + r.ldflags), "-o", r.out}, r.pkgs)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	var output verbose
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
				fmt.Fprintf(b.Progress, "building %s; %s, %d packages compiled\n", r.left(count), time.Since(start).Round(time.Second), output.packages())
			case <-done:
				return
			}
		}
	}()
	err := cmd.Run()
	close(done)
	<-reported
	what := "building " + strings.Join(r.names, ", ")
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("%s: go %s: %w\n%s", what, strings.Join(args, " "), err, bytes.TrimSpace(output.text.Bytes()))
	}
	if n := output.packages(); n > 0 {
		fmt.Fprintf(b.Progress, "built %d of %d: %s; %s, %d packages compiled\n",
			count.done+len(r.names), count.all, strings.Join(r.names, ", "), time.Since(start).Round(time.Second), n)
	}
	return nil
}

// left returns the programs that are not built yet, after their number: "3 of 5: kube-apiserver, kubectl".
func (r run) left(count progress) string {
	var left []string
	for i, name := range r.names {
		if r.files == nil || !exists(filepath.Join(r.out, r.files[i])) {
			left = append(left, name)
		}
	}
	count.done += len(r.names) - len(left)
	return fmt.Sprintf("%d of %d: %s", min(count.done+1, count.all), count.all, strings.Join(left, ", "))
}

// verbose takes the output of go build -v: the names of packages as they are compiled, and messages.
type verbose struct {
	mu       sync.Mutex
	part     []byte
	compiled int
	text     bytes.Buffer
}

// Write implements io.Writer.
func (v *verbose) Write(b []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.part = append(v.part, b...)
	for {
		line, rest, ok := bytes.Cut(v.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		if v.part = rest; bytes.ContainsAny(line, " :") {
			v.text.Write(append(line, '\n'))
		} else {
			v.compiled++
		}
	}
}

func (v *verbose) packages() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.compiled
}
