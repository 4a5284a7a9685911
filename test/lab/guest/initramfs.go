package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ironlb/ironlb/test/lab/agent/wire"
)

// bootModules are the modules needed before the host's root is mounted; their dependencies are loaded too. All other
// modules are available to modprobe.
var bootModules = []string{"virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console", "virtio_rng", "virtio_net"}

// initramfs writes the guest's initial file system: the agent as /init, the
// boot modules, and the configuration.
func initramfs(ctx context.Context, w io.Writer, k Kernel, agent string, c wire.Config) error {
	modules, err := moduleFiles(ctx, k)
	if err != nil {
		return err
	}
	var a archive
	a.dir("dev")
	a.dir("modules")
	if err := a.file("init", 0o755, agent); err != nil {
		return err
	}
	for _, m := range modules {
		name := "modules/" + filepath.Base(m)
		if err := a.file(name, 0o644, m); err != nil {
			return err
		}
		c.Modules = append(c.Modules, "/"+name)
	}
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	a.add(strings.TrimPrefix(wire.ConfigPath, "/"), 0o100644, b)
	_, err = w.Write(a.end())
	return err
}

// moduleFiles lists the boot modules in load order.
func moduleFiles(ctx context.Context, k Kernel) ([]string, error) {
	argv := append([]string{"modprobe", "-d", k.Dir, "-S", k.Release, "-a", "--show-depends"}, bootModules...)
	out, err := output(ctx, "", argv...)
	if err != nil {
		return nil, fmt.Errorf("order the guest's modules: %w", err)
	}
	var files []string
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == "insmod" && !seen[f[1]] {
			seen[f[1]] = true
			files = append(files, f[1])
		}
	}
	return files, nil
}

// archive is a cpio file in the "newc" format: Linux,
// Documentation/driver-api/early-userspace/buffer-format.rst.
type archive struct {
	bytes.Buffer
	inode int
}

func (a *archive) dir(name string) { a.add(name, 0o040755, nil) }

func (a *archive) file(name string, mode int, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	a.add(name, 0o100000|mode, b)
	return nil
}

func (a *archive) add(name string, mode int, content []byte) {
	a.inode++
	// inode, mode, uid, gid, links, mtime, size, device and special device in
	// two numbers each, length of the name with its zero, checksum.
	fmt.Fprintf(a, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name + "\x00")
	a.pad()
	a.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}

func (a *archive) end() []byte {
	a.add("TRAILER!!!", 0, nil)
	return a.Bytes()
}
