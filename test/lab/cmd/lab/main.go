// lab demonstrates IronLB on a cluster of three nodes on this machine.
//
//	lab demo     two Services, their addresses, a download and new connections while their owner's node dies
//	lab shell    a cluster with kubelets and the chart, left up for a shell
//	lab build    the third-party programs that tests run, which takes minutes the first time
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/term"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/guest"
	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/tools"
	"github.com/ironlb/ironlb/test/rare"
)

const usage = `use: lab demo | lab shell | lab build
  demo   build a cluster, show two Services and the death of their owner's node, remove everything
  shell  build a cluster with kubelets, install the chart, and leave it up for a shell, until exit
  build  build the third-party programs that tests run, into the user's cache folder
demo and shell need root, and the Debian packages that "make deps" installs`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	var exit *host.ExitError
	switch {
	case err == nil:
	case interrupted && !errors.Is(err, lab.ErrLeft):
		fmt.Fprintln(os.Stderr, "interrupted; the cluster is removed")
		os.Exit(130)
	case errors.As(err, &exit) && len(os.Args) > 1 && os.Args[1] == "run":
		os.Exit(exit.Code)
	default:
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "demo":
		return demo(ctx, false)
	case len(args) == 1 && args[0] == "shell":
		return demo(ctx, true)
	case len(args) == 1 && args[0] == "build":
		return build(ctx)
	case len(args) == 1 && (args[0] == "help" || args[0] == "--help" || args[0] == "-h"):
		fmt.Println(usage)
		return nil
	case len(args) >= 3 && args[0] == "run":
		return runIn(args[1], args[2], args[3:])
	}
	return errors.New(usage)
}

// build builds what tests would otherwise wait for, some of them under a deadline.
func build(ctx context.Context) error {
	b, err := tools.New(ctx, os.Stderr)
	if err != nil {
		return err
	}
	own := slices.Concat(tools.LabPrograms, tools.ProductPrograms, []string{"cmd/kubectl-ironlb"})
	return b.Programs(ctx, tools.Tested(rare.All), own)
}

// runIn implements the shell's commands: it runs argv in a namespace of the kernel behind socket, "-" for this
// machine's.
func runIn(socket, namespace string, argv []string) error {
	var h host.Host = host.Native{}
	if socket != "-" {
		h = guest.Remote{Socket: socket}
	}
	if len(argv) == 0 {
		argv = []string{"sh"}
	}
	argv = append([]string{"ip", "netns", "exec", namespace}, argv...)
	tty := term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
	return host.Attach(context.Background(), h, host.Cmd{Argv: argv, TTY: tty})
}
