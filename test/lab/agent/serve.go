package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
)

// serve answers requests from the host until the channel to it breaks.
func serve() error {
	port, err := openPort(30 * time.Second)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(port, wire.Ready); err != nil {
		return fmt.Errorf("greet the host: %w", err)
	}
	conf := yamux.DefaultConfig()
	conf.EnableKeepAlive = false // the host sends keepalives
	conf.ConnectionWriteTimeout = time.Minute
	conf.LogOutput = io.Discard
	session, err := yamux.Server(port, conf)
	if err != nil {
		return err
	}
	for {
		stream, err := session.AcceptStream()
		if err != nil {
			return fmt.Errorf("the host's requests: %w", err)
		}
		go func() {
			defer stream.Close()
			run(stream)
		}()
	}
}

// openPort opens the channel to the host. The device appears some time after its driver was loaded.
func openPort(limit time.Duration) (*os.File, error) {
	const pattern = "/dev/vport*p1"
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if found, _ := filepath.Glob(pattern); len(found) == 1 {
			return os.OpenFile(found[0], os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("no device %s after %s", pattern, limit)
}
