// Package host runs commands in the kernel of a lab's network namespaces: this machine's own, or a guest's. The lab
// uses only the interface Host, the same for both.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Host starts commands. It is safe for concurrent use.
type Host interface {
	// Start starts c and returns once it runs. When ctx ends, the command's process group is killed and Wait returns an
	// error that wraps ctx.Err().
	Start(ctx context.Context, c Cmd) (Process, error)
}

// Process is a started command. Wait must be called exactly once; it returns when the command has ended and its output
// has been copied.
type Process interface {
	// Wait returns nil for exit status 0, *ExitError for any other end of the command itself, and another error if its
	// end is unknown.
	Wait() error
	// Signal sends s to the command's process, not to its group. It returns os.ErrProcessDone for an ended command.
	Signal(s syscall.Signal) error
	// Pid is the process number in the kernel that runs the command.
	Pid() int
}

// Cmd describes a command. A host never uses the caller's environment: a relative Argv[0] is found by the command's own
// PATH.
type Cmd struct {
	Argv []string
	Env  []string // "K=V", added to the host's own environment; later ones win
	Dir  string   // empty: the caller's directory natively, / in a guest

	Stdin          io.Reader // nil: /dev/null
	Stdout, Stderr io.Writer // nil: discarded. If equal, never written concurrently.

	// TTY gives the command a terminal: Stdin and Stdout must be a terminal here.
	TTY bool
}

func (c Cmd) String() string { return strings.Join(c.Argv, " ") }

// ExitError is a command that ended with a status other than 0.
type ExitError struct {
	Argv   []string
	Code   int            // exit status; 128+signal if ended by a signal
	Signal syscall.Signal // 0 unless ended by a signal
	Stderr string         // set by Run
}

func (e *ExitError) Error() string {
	s := fmt.Sprintf("%s: exit status %d", strings.Join(e.Argv, " "), e.Code)
	if e.Signal != 0 {
		s = fmt.Sprintf("%s: ended by signal %s", strings.Join(e.Argv, " "), e.Signal)
	}
	if t := strings.TrimSpace(e.Stderr); t != "" {
		s += ": " + t
	}
	return s
}

// Run runs argv and returns its standard output. An error carries its
// standard error.
func Run(ctx context.Context, h Host, argv ...string) ([]byte, error) {
	return Output(ctx, h, Cmd{Argv: argv})
}

// Output is Run for a Cmd, whose Stdout and Stderr it replaces.
func Output(ctx context.Context, h Host, c Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	p, err := h.Start(ctx, c)
	if err == nil {
		err = p.Wait()
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		exit.Stderr = stderr.String()
	}
	return stdout.Bytes(), err
}

// Attach runs c with this process's own streams and forwards signals to it.
func Attach(ctx context.Context, h Host, c Cmd) error {
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	p, err := h.Start(ctx, c)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				if c.TTY && (s == syscall.SIGINT || s == syscall.SIGQUIT) {
					continue // the terminal sends them to the command too
				}
				p.Signal(s.(syscall.Signal)) // it may have ended; Wait reports that
			case <-done:
				return
			}
		}
	}()
	return p.Wait()
}
