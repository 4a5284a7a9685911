package main

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
)

// startTTY starts c as the leader of a session on a terminal of its own.
func (c *command) startTTY(size wire.Size, out *wire.Writer) error {
	master, slave, err := openTTY()
	if err != nil {
		return err
	}
	defer slave.Close()
	resize(master, size)
	c.tty, c.input, c.drain = master, endOfFile{master}, make(chan struct{})
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = slave, slave, slave
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		master.Close()
		return err
	}
	go func() {
		defer close(c.drain)
		// It ends with EIO when the last process has closed the terminal.
		io.Copy(out.Data(wire.KindStdout), master)
	}()
	return nil
}

func openTTY() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	return master, slave, nil
}

func resize(tty *os.File, s wire.Size) {
	unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
}

// endOfFile closes a terminal's input by typing ^D.
type endOfFile struct{ *os.File }

func (e endOfFile) Close() error {
	_, err := e.Write([]byte{4})
	return err
}
