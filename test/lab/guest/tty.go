package guest

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
)

// rawTerminal forwards the keys of the caller's terminal to the command's, and keeps both the same size, until the
// command has ended.
func (p *process) rawTerminal(size *wire.Size) error {
	f, ok := p.c.Stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return errors.New("a command with a terminal needs one as its input here")
	}
	fd := int(f.Fd())
	*size = sizeOf(fd)
	old, err := term.MakeRaw(fd)
	if err != nil {
		return err
	}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	p.release = append(p.release, func() {
		signal.Stop(changes)
		close(changes)
		term.Restore(fd, old)
	})
	go func() {
		for range changes {
			p.out.SendJSON(wire.KindResize, sizeOf(fd))
		}
	}()
	return nil
}

func sizeOf(fd int) wire.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return wire.Size{Rows: 24, Cols: 80}
	}
	return wire.Size{Rows: uint16(rows), Cols: uint16(cols)}
}
