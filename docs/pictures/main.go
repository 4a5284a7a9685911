// Command pictures draws the pictures of the documentation as SVG, with the figures of the tables in docs/development.
// Run it in the folder of the repository: `make generate` does.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run() error {
	all, err := pictures(os.DirFS("docs/development"))
	if err != nil {
		return err
	}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join("docs/pictures", name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write a picture: %w", err)
		}
	}
	return nil
}

// pictures returns the text of each picture by the name of its file. The folder has the measured tables.
func pictures(measured fs.FS) (map[string]string, error) {
	failover, err := readTable(measured, "performance.md", "owner powered off, IPv4")
	if err != nil {
		return nil, err
	}
	connections, err := readTable(measured, "connections.md", "fault")
	if err != nil {
		return nil, err
	}
	timeline, err := timelineOf(failover)
	if err != nil {
		return nil, err
	}
	out := map[string]string{"topology.svg": topology(), "failover.svg": timeline}
	for name, draw := range map[string]func(table) (string, error){"path-pod.svg": pathPod, "path-nodeport.svg": pathNodePort, "path-direct.svg": pathDirect} {
		if out[name], err = draw(connections); err != nil {
			return nil, err
		}
	}
	return out, nil
}
