// Package unixsocket listens on unix sockets that only processes of the same user can use.
package unixsocket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// longest is the maximum length of a path in a sockaddr_un (unix(7)).
const longest = 107

// Listener is a listener with the lock that protects its path.
type Listener struct {
	*net.UnixListener
	lock *os.File
}

// Listen takes over the path, even from a process that was killed, but not from a running one. Errors name the flag that
// has the path.
func Listen(flag, path string) (*Listener, error) {
	if err := Check(flag, path); err != nil {
		return nil, err
	}
	if err := ownDirectory(flag, filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the socket: %w", err)
	}
	fail := func(err error) (*Listener, error) { return nil, errors.Join(err, lock.Close()) }
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return fail(fmt.Errorf("another process has the socket %s: give another %s", path, flag))
	} else if err != nil {
		return fail(fmt.Errorf("lock %s: %w", lock.Name(), err))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(fmt.Errorf("remove an earlier process' socket: %w", err))
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fail(fmt.Errorf("listen on the socket: %w", err))
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return fail(errors.Join(fmt.Errorf("restrict access to the socket: %w", err), l.Close()))
	}
	return &Listener{l, lock}, nil
}

// Release stops listening and leaves the path to others.
func (l *Listener) Release() {
	l.Close()
	l.lock.Close()
}

// Check rejects a path on which listening would fail or do harm: an existing file there is removed, and its
// directory is closed to other users, which an operator with /run/bgpd.sock could not fix. It changes nothing.
func Check(flag, path string) error {
	if !filepath.IsAbs(path) || filepath.Base(path) == "/" || len(path) > longest {
		return fmt.Errorf("%s is %q: it must be an absolute path of at most %d bytes, in a directory of its own", flag, path, longest)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s is %s, which exists and is no socket: give another one, or remove it", flag, path)
	}
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return nil // it will be created, or is closed to other users
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("check the directory of %s: %w", flag, err)
	}
	for _, e := range entries {
		if name := filepath.Join(dir, e.Name()); name != path && name != path+".lock" {
			return fmt.Errorf("%s is %s, in a directory with other files, such as %s: use a dedicated directory, closed to other users; it is created if missing",
				flag, path, e.Name())
		}
	}
	return nil
}

// ownDirectory creates a directory that is closed to other users.
func ownDirectory(flag, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the socket: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return fmt.Errorf("check the directory of the socket, %s: %w", dir, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("the directory of the socket, %s, is a link or another user's: remove it, or give another %s", dir, flag)
	}
	if stat.Mode&0o077 == 0 {
		return nil
	}
	if stat.Mode&unix.S_ISVTX != 0 {
		return fmt.Errorf("the directory of the socket, %s, is shared with others: give a %s in a dedicated directory", dir, flag)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("restrict access to the socket: %w", err)
	}
	return nil
}

// SameUser fails if the process on the other side runs as another user.
func SameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("read the peer's credentials: %w", credErr)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("process %d is of user %d, and only user %d may connect", cred.Pid, cred.Uid, os.Geteuid())
	}
	return nil
}
