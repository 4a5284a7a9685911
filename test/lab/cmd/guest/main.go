// Command guest runs commands in a kernel with IPVS: this machine's own, or else a guest's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/term"

	"github.com/ironlb/ironlb/test/lab/guest"
	"github.com/ironlb/ironlb/test/lab/host"
)

const usage = `Run commands in a kernel that has IPVS: this machine's own if it has, else a guest's.

  guest probe                 report whether a guest is needed, and why
  guest prepare               download what a guest needs
  guest run -- CMD...         boot, run CMD, power off
  guest with -- CMD...        boot, run CMD on this machine; "guest exec" in CMD
                              uses that one guest; power off
  guest serve --socket PATH   boot and take commands at PATH, until ended
  guest exec [--socket PATH] -- CMD...
                              run CMD in the guest served at PATH, or in the one
                              of "guest with"; without either, on this machine

The exit status is that of CMD; 125 means that guest itself failed. exec passes
on the folder it is called in and the variables that begin with GO, IRONLB or
LAB, so that it can be used as: go test -exec 'guest exec --'

`

// socketEnv names the socket for "guest exec".
const socketEnv = "IRONLB_GUEST_SOCKET"

// ownFailure is the exit status when there is none of a command.
const ownFailure = 125

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *host.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.Code)
	case err != nil:
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(ownFailure)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return errors.New("which subcommand?")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	socket := flags.String("socket", os.Getenv(socketEnv), "unix socket of a served guest, for serve and exec")
	verbose := flags.Bool("v", false, "print the guest's console")
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	c, err := config(*verbose)
	if err != nil {
		return err
	}
	argv := flags.Args()
	switch args[0] {
	case "run", "with", "exec":
		if len(argv) == 0 {
			return fmt.Errorf("%s: no command is given", args[0])
		}
	default:
		if len(argv) != 0 {
			return fmt.Errorf("%s: unexpected %q", args[0], argv)
		}
	}
	switch args[0] {
	case "probe":
		return guest.Probe()
	case "prepare":
		_, err := guest.Prepare(ctx, c.Log)
		return err
	case "run":
		return runOne(ctx, c, argv)
	case "with":
		return with(ctx, c, argv)
	case "serve":
		return serve(ctx, c, *socket)
	case "exec":
		return execute(*socket, argv)
	case "help", "-h", "--help":
		fmt.Print(usage)
		return nil
	}
	return fmt.Errorf("unknown subcommand %q; see guest help", args[0])
}

// config shares the repository and the temporary folder, whose files change while a guest runs: sources, test data,
// test binaries.
func config(verbose bool) (guest.Config, error) {
	c := guest.Config{Shares: []string{os.TempDir()}}
	if verbose {
		c.Console = os.Stderr
	}
	c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	dir, err := os.Getwd()
	if err != nil {
		return c, err
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			c.Shares = append(c.Shares, d)
			break
		}
	}
	return c, nil
}

// start boots a guest. Signals abort the boot; afterwards they are for the command in the guest.
func start(ctx context.Context, c guest.Config) (*guest.Guest, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	g, err := guest.Start(life, c)
	if err != nil {
		end()
		return nil, err
	}
	stop()
	return g, nil
}

func runOne(ctx context.Context, c guest.Config, argv []string) error {
	if guest.Probe() == nil {
		return attach(host.Native{}, argv)
	}
	g, err := start(ctx, c)
	if err != nil {
		return err
	}
	defer g.Close()
	return attach(g, argv)
}

// serve listens before it boots: a command may connect at once and waits for the guest.
func serve(ctx context.Context, c guest.Config, socket string) error {
	if socket == "" {
		return errors.New("serve: --socket is needed")
	}
	l, err := listen(socket)
	if err != nil {
		return err
	}
	defer l.Close()
	g, err := start(ctx, c)
	if err != nil {
		return err
	}
	defer g.Close()
	return g.Serve(ctx, l)
}

// listen replaces the socket of a killed process.
func listen(socket string) (net.Listener, error) {
	if conn, err := net.Dial("unix", socket); err == nil {
		conn.Close()
		return nil, fmt.Errorf("serve: another process serves a guest at %s: choose another path", socket)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(socket); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", socket)
}

func with(ctx context.Context, c guest.Config, argv []string) error {
	cmd := host.Cmd{Argv: argv, TTY: onTerminal()}
	if guest.Probe() == nil {
		return host.Attach(context.Background(), host.Native{}, cmd)
	}
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	g, err := start(ctx, c)
	if err != nil {
		return err
	}
	defer g.Close()
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	life, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(life, l) }()
	cmd.Env = []string{socketEnv + "=" + socket}
	err = host.Attach(life, host.Native{}, cmd)
	end()
	// The loss of the guest explains all other errors.
	return errors.Join(<-served, err)
}

func execute(socket string, argv []string) error {
	if socket != "" {
		return attach(guest.Remote{Socket: socket}, argv)
	}
	if err := guest.Probe(); err != nil {
		return fmt.Errorf("no guest is served (--socket, %s), and this machine cannot be used instead: %w", socketEnv, err)
	}
	return attach(host.Native{}, argv)
}

// attach runs argv with this process's own streams.
func attach(h host.Host, argv []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	c := host.Cmd{Argv: argv, Dir: dir, TTY: onTerminal()}
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "GO") || strings.HasPrefix(e, "IRONLB") || strings.HasPrefix(e, "LAB") {
			c.Env = append(c.Env, e)
		}
	}
	if c.TTY {
		c.Env = append(c.Env, "TERM="+os.Getenv("TERM"))
	}
	return host.Attach(context.Background(), h, c)
}

func onTerminal() bool {
	return term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
}
