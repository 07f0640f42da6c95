import { defineConfig } from 'vite';

export default defineConfig({
  // Grafana's packages are written for Node's idea of a global scope.
  define: { global: 'globalThis', 'process.env.NODE_ENV': '"production"', 'process.env': '{}' },
  esbuild: { jsx: 'automatic' },
  resolve: { dedupe: ['react', 'react-dom', 'rxjs', '@grafana/data', '@grafana/runtime', '@grafana/ui'] },
  build: {
    target: 'es2022',
    minify: false,
    chunkSizeWarningLimit: 100_000,
    // scenes imports names that this runtime does not export and never calls here.
    rollupOptions: { shimMissingExports: true },
  },
});
