package main

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
	"strings"
	"sync"
	"syscall"
	"time"
)

// progress prints what the tool does. Its zero value prints nothing.
type progress struct {
	mu sync.Mutex
	w  io.Writer
}

func (p *progress) printf(format string, args ...any) {
	if p == nil || p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, format+"\n", args...)
}

// long runs fn and prints a line once it has taken three seconds, and then every ten.
func (p *progress) long(what string, fn func() error) error {
	done, stopped, start := make(chan struct{}), make(chan struct{}), time.Now()
	go func() {
		defer close(stopped)
		timer := time.NewTimer(3 * time.Second)
		defer timer.Stop()
		for {
			select {
			case <-done:
				return
			case <-timer.C:
				p.printf("%s: %d s", what, int(time.Since(start).Seconds()))
				timer.Reset(10 * time.Second)
			}
		}
	}()
	err := fn()
	close(done)
	<-stopped
	return err
}

// run runs a program in a folder ("" for the current one) and returns its stdout. Its error contains stderr.
func run(ctx context.Context, dir, program string, args ...string) (string, error) {
	return runEnv(ctx, dir, nil, program, args...)
}

func runEnv(ctx context.Context, dir string, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("%s is not on PATH: %w", program, err)
		}
		// Some programs, apt-get among them, print the cause on stdout.
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()+last(stdout.String(), 1500)))
	}
	return stdout.String(), nil
}

// last returns at most n bytes of the end of a text, from the start of a line.
func last(text string, n int) string {
	if len(text) > n {
		_, text, _ = strings.Cut(text[len(text)-n:], "\n")
	}
	return text
}

func hashFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// lock locks a folder against a concurrent build. The kernel releases the lock when the process ends.
func lock(ctx context.Context, log *progress, file string) (func(), error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for waiting := false; ; waiting = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, err)
		}
		if !waiting {
			log.printf("waiting for another build of images")
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
