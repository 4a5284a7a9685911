package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/vishvananda/netns"
)

// Dialer returns a dial function that opens sockets in the named network namespace of this machine.
func Dialer(namespace string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var conn net.Conn
		err := Within(namespace, func() (err error) {
			d := net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
			conn, err = d.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}

// Within calls do on a thread in the named network namespace. Work that do hands to other goroutines runs outside it.
func Within(namespace string, do func() error) error {
	target, err := netns.GetFromName(namespace)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", namespace, err)
	}
	defer target.Close()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the present network namespace: %w", err)
	}
	defer home.Close()
	if err := netns.Set(target); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", namespace, err)
	}
	err = do()
	if back := netns.Set(home); back != nil {
		// The thread stays locked and ends with its goroutine.
		return errors.Join(err, fmt.Errorf("return from network namespace %s: %w", namespace, back))
	}
	runtime.UnlockOSThread()
	return err
}
