import { defineConfig } from "vite";

// Names without hashes: the built files are in the repository, and the gateway's ETag tells when one has changed.
export default defineConfig({
  base: "/",
  build: {
    outDir: "../static",
    emptyOutDir: true,
    assetsDir: "page",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        codeSplitting: false,
        entryFileNames: "page/page.js",
        assetFileNames: (asset) => (asset.names[0]?.endsWith(".css") ? "page/page.css" : "page/[name][extname]"),
      },
    },
  },
  server: { proxy: { "/slipstream": "http://127.0.0.1:8000" } },
});
