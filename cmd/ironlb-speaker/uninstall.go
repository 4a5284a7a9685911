package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func cleanupCommand(o *options) *cobra.Command {
	var stateDir string
	var wait bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove from this node everything that ironlb-speaker made, and nothing else",
		Long: `Remove from this node everything that ironlb-speaker made, and nothing else: what is in the kernel, and what it keeps in the stateDir
of the file of --config. It needs CAP_NET_ADMIN in the host's network namespace, and no API server. It logs what it removes. Stop the speaker
first, or give --wait.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := o.logs.Logger(os.Stderr)
			if err != nil {
				return err
			}
			c, err := readConfig(o.configFile)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("state-dir") {
				c.StateDir = stateDir
			}
			ctx := cmd.Context()
			if wait {
				free, err := waitForEnd(ctx, o.metricsAddress, o.bgpSocket, log)
				if err != nil {
					return err
				}
				defer free()
			}
			return errors.Join(cleanup(ctx, c.StateDir, log), removeEmpty(c.StateDir, log), removeSocket(o.bgpSocket, log))
		},
	}
	cmd.Flags().StringVar(&stateDir, "state-dir", "", "folder of what it keeps, in place of stateDir of --config")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until no ironlb-speaker and no ironlb-bgpd run on this node")
	cmd.Flags().StringVar(&o.metricsAddress, "metrics-bind-address", defaultMetricsAddress, "the same flag of ironlb-speaker, for --wait")
	cmd.Flags().StringVar(&o.bgpSocket, "bgp-socket", "", "the same flag of ironlb-speaker: its folder is removed, once ironlb-bgpd has ended")
	return cmd
}

// endInterval is the polling interval for the end of the programs.
const endInterval = 500 * time.Millisecond

// waitForEnd returns when no speaker has the address of the metrics and no ironlb-bgpd the lock of its socket. Both
// stay taken until free is called.
func waitForEnd(ctx context.Context, address, socket string, log *slog.Logger) (free func(), err error) {
	var listener net.Listener
	var lock *os.File
	free = func() {
		if listener != nil {
			listener.Close()
		}
		if lock != nil {
			lock.Close()
		}
	}
	ticker := time.NewTicker(endInterval)
	defer ticker.Stop()
	reported := ""
	for {
		var waits error
		if listener == nil {
			if listener, err = net.Listen("tcp", address); err != nil {
				if !errors.Is(err, syscall.EADDRINUSE) {
					return nil, fmt.Errorf("wait for the end of ironlb-speaker (--metrics-bind-address): %w", err)
				}
				listener, waits = nil, fmt.Errorf("ironlb-speaker runs: %w", err)
			}
		}
		if lock == nil && socket != "" && waits == nil {
			if lock, err = takeLock(socket + ".lock"); errors.Is(err, syscall.EWOULDBLOCK) {
				lock, waits = nil, fmt.Errorf("ironlb-bgpd runs: %w", err)
			} else if err != nil {
				free()
				return nil, fmt.Errorf("wait for the end of ironlb-bgpd (--bgp-socket): %w", err)
			}
		}
		if waits == nil {
			return free, nil
		}
		if text := waits.Error(); text != reported {
			log.Info("wait", "reason", text)
			reported = text
		}
		select {
		case <-ctx.Done():
			free()
			return nil, fmt.Errorf("wait for the end of the programs on this node: %w: %w", context.Cause(ctx), waits)
		case <-ticker.C:
		}
	}
}

// takeLock takes the lock that ironlb-bgpd holds while it runs. Without the lock file it returns nil.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// removeSocket removes the socket of ironlb-bgpd, its lock, its folder, and the parent folder if that is then empty.
func removeSocket(socket string, log *slog.Logger) error {
	if socket == "" {
		return nil
	}
	for _, file := range []string{socket, socket + ".lock"} {
		if err := os.Remove(file); err == nil {
			log.Info("delete file", "file", file, "reason", "Cleanup")
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the socket of ironlb-bgpd: %w", err)
		}
	}
	folder := filepath.Dir(socket)
	return errors.Join(removeEmpty(folder, log), removeEmpty(filepath.Dir(folder), log))
}

// removeEmpty removes an empty folder. One with other files, and one that is a mount, stay.
func removeEmpty(dir string, log *slog.Logger) error {
	if dir == "" {
		return nil
	}
	err := os.Remove(dir)
	switch {
	case err == nil:
		log.Info("delete folder", "folder", dir, "reason", "Cleanup")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EEXIST):
	default:
		return fmt.Errorf("remove a folder of ours: %w", err)
	}
	return nil
}
